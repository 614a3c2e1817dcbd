"""Train data-parallel over all processes: each has the whole network and processes its share of every batch."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import jax
import numpy as np
from data import DEFAULT_DIRECTORY, load
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Axes
from model import adam, initial, loss

# The directory that `phalanx run --checkpoint` keeps for the job.
OUT = Path(os.environ.get("PHALANX_CHECKPOINT", "out"))
# The weights, and the two moments that Adam keeps of each.
State = tuple[dict, dict, dict]


def train(arguments: argparse.Namespace) -> None:
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    shared, split = NamedSharding(mesh, Axes()), NamedSharding(mesh, Axes("data"))

    @jax.jit
    def step(weights, moments, number, images, labels):
        value, gradient = jax.value_and_grad(loss)(weights, images, labels)
        return *adam(weights, moments, gradient, number, arguments.learning_rate), value

    images, labels = load(arguments.data, "train")
    images, labels = images[: arguments.images], labels[: arguments.images]
    done, state = resume(arguments.out, initial(arguments.seed))
    weights, *moments = jax.device_put(state, shared)
    number, started = done * (len(images) // arguments.batch_size), time.monotonic()
    for epoch in range(done + 1, arguments.epochs + 1):
        losses = []
        for batch in batches(len(images), arguments.batch_size, arguments.seed + epoch):
            number += 1
            # Each process contributes its own rows to one global array.
            mine = [jax.make_array_from_process_local_data(split, values[batch]) for values in (images, labels)]
            weights, moments, value = step(weights, moments, np.float32(number), *mine)
            losses.append(value)
        mean = float(np.mean(jax.device_get(losses)))
        if jax.process_index() == 0:
            print(f"epoch {epoch}: loss {mean:.4f}, {time.monotonic() - started:.1f} s", flush=True)
            save(arguments.out, epoch, (weights, *moments))


def batches(images: int, size: int, seed: int) -> list[np.ndarray]:
    """Return this process's rows of each batch of `size` images; all processes shuffle in the same way."""
    share = size // jax.process_count()
    order = np.random.default_rng(seed).permutation(images)[: images - images % (share * jax.process_count())]
    return list(order.reshape(-1, jax.process_count(), share)[:, jax.process_index()])


def save(directory: Path, epoch: int, state: State) -> None:
    """Write a temporary file and rename it, so that a reader never sees a partial one."""
    directory.mkdir(parents=True, exist_ok=True)
    weights, *moments = jax.device_get(state)
    named = {f"moment{order}/{name}": value for order, moment in enumerate(moments) for name, value in moment.items()}
    np.savez(directory / "partial.npz", epoch=epoch, **weights, **named)
    (directory / "partial.npz").replace(directory / "weights.npz")


def resume(directory: Path, drawn: dict[str, np.ndarray]) -> tuple[int, State]:
    """Return the epochs that are done, the weights and Adam's moments; without a file, those of a beginning."""
    if not (directory / "weights.npz").exists():
        zeros = jax.tree.map(np.zeros_like, drawn)
        return 0, (drawn, zeros, zeros)
    with np.load(directory / "weights.npz") as saved:
        first, second = ({name: saved[f"moment{order}/{name}"] for name in drawn} for order in range(2))
        return int(saved["epoch"]), ({name: saved[name] for name in drawn}, first, second)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DEFAULT_DIRECTORY, help="the four idx.gz files (%(default)s)")
    parser.add_argument("--out", type=Path, default=OUT, help="for weights.npz (%(default)s)")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=192, help="images per step, all processes (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--images", type=int, help="train on the first N images only")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    jax.distributed.initialize()
    print(f"process {jax.process_index()} of {jax.process_count()}, {jax.local_devices()}", flush=True)
    train(arguments)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
