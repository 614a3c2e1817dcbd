"""Try learning rates and weight decays on Fashion-MNIST, one per CPU of the Ray cluster, and test the best of them."""

# pyright: reportMissingImports=false, reportFunctionMemberAccess=false
# (the recipe installs Ray)

from __future__ import annotations

import argparse
import gzip
import itertools
import os
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

# This applies to the tasks, too: Ray starts them with the driver's variables.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import ray

RATES = (0.01, 0.03, 0.1, 0.3)
DECAYS = (0.0, 1e-3, 1e-2)
TRAINING = slice(0, 50_000)
VALIDATION = slice(50_000, 60_000)


class Trial(NamedTuple):
    rate: float
    decay: float
    accuracy: float
    node: str
    weights: np.ndarray


def read(directory: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Load images as rows of 784 numbers from 0 to 1 and a 1 for the bias, and labels from 0 to 9."""
    with gzip.open(directory / f"{split}-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(directory / f"{split}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    return np.pad(images.astype(np.float32) / 255, ((0, 0), (0, 1)), constant_values=1), labels


def train(images: np.ndarray, labels: np.ndarray, rate: float, decay: float, epochs: int) -> np.ndarray:
    """Train softmax regression by stochastic gradient descent."""
    random = np.random.default_rng(0)
    weights = np.zeros((images.shape[1], 10), np.float32)
    for _ in range(epochs):
        for batch in np.split(random.permutation(len(images)), len(images) // 100):
            errors = softmax(images[batch] @ weights)
            errors[np.arange(len(batch)), labels[batch]] -= 1
            weights -= rate * (images[batch].T @ errors / len(batch) + decay * weights)
    return weights


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def accuracy(weights: np.ndarray, images: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean((images @ weights).argmax(axis=1) == labels))


@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def trial(images: np.ndarray, labels: np.ndarray, rate: float, decay: float, epochs: int) -> Trial:
    """Train and validate one pair; the arrays are in Ray's shared memory, once per node."""
    weights = train(images[TRAINING], labels[TRAINING], rate, decay, epochs)
    held_out = accuracy(weights, images[VALIDATION], labels[VALIDATION])
    return Trial(rate, decay, held_out, socket.gethostname(), weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--at-least", type=float, default=0.0, help="fail if the test accuracy is lower")
    chosen = parser.parse_args()
    ray.init(logging_level="ERROR")
    print(f"{len(ray.nodes())} nodes, {ray.cluster_resources()['CPU']:.0f} CPUs", flush=True)
    images, labels = (ray.put(array) for array in read(chosen.data, "train"))
    waiting = [trial.remote(images, labels, *one, chosen.epochs) for one in itertools.product(RATES, DECAYS)]
    print("  rate  decay  accuracy  node", flush=True)
    trials = []
    while waiting:
        [done], waiting = ray.wait(waiting)
        trials.append(ray.get(done))
        print("{0.rate:6} {0.decay:6}  {0.accuracy:8.4f}  {0.node}".format(trials[-1]), flush=True)
    print("trials:", ", ".join(f"{count} on {node}" for node, count in Counter(t.node for t in trials).items()))
    best = max(trials, key=lambda one: one.accuracy)
    tested = accuracy(best.weights, *read(chosen.data, "t10k"))
    print(f"rate {best.rate}, decay {best.decay}: test accuracy {tested:.4f}")
    if tested < chosen.at_least:
        sys.exit(f"the test accuracy is below {chosen.at_least}")


if __name__ == "__main__":
    main()
