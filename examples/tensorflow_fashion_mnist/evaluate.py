"""Evaluate the latest checkpoint of each directory on the 10,000 test images, which are not used in training."""

from __future__ import annotations

import argparse
from pathlib import Path

import model as network
import numpy as np
from data import DEFAULT_DIRECTORY, load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directories", nargs="+", help="directories of checkpoints of train.py or train_flags.py")
    parser.add_argument("--data", type=Path, default=DEFAULT_DIRECTORY, help="the data's files (%(default)s)")
    parser.add_argument("--at-least", type=float, default=0.8, help="exit with 1 below this (%(default)s)")
    arguments = parser.parse_args()

    images, labels = load(arguments.data, "test")
    model = network.build(images.shape[1:])
    accuracies = []
    for directory in arguments.directories:
        newest = network.restore(model, directory)
        scores = model.predict(images, batch_size=1_000, verbose=0)
        accuracies.append(float(np.mean(scores.argmax(axis=1) == labels)))
        print(f"{newest}: test accuracy {accuracies[-1]:.4f} (required: {arguments.at_least})", flush=True)
    raise SystemExit(0 if min(accuracies) >= arguments.at_least else 1)


if __name__ == "__main__":
    main()
