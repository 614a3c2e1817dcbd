"""Train on the shards that prepare.py has written: each process reads its own, and all keep one model."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def load(directory: Path, rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Read every world-th shard."""
    paths = sorted(directory.glob("shard-*.npz"))
    if len(paths) < world:
        raise SystemExit(f"{directory} has {len(paths)} shards for {world} processes: run prepare.py first")
    arrays = [np.load(path) for path in paths[rank::world]]
    inputs, targets = (np.concatenate([array[name] for array in arrays]) for name in ("inputs", "targets"))
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="the directory of prepare.py")
    parser.add_argument("--steps", type=int, default=60, help="how many steps to train (%(default)s)")
    parser.add_argument("--at-least", type=float, default=0.97, help="exit with 1 below this accuracy (%(default)s)")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    inputs, targets = load(arguments.directory / "shards", rank, world)
    # Processes may have a row more or less than others, and all must take as many steps: each step is on all its rows.
    model = DistributedDataParallel(torch.nn.Linear(inputs.shape[1], 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    for _ in range(arguments.steps):
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(model(inputs)[:, 0], targets).backward()
        optimizer.step()
    counts = torch.tensor([((model(inputs)[:, 0] > 0) == (targets > 0.5)).sum().item(), len(targets)])
    dist.all_reduce(counts)
    accuracy = counts[0].item() / counts[1].item()
    if rank == 0:
        print(f"accuracy {accuracy:.3f} on {counts[1].item():,} rows of {world} processes")
    time.sleep(1)  # examples/fashion_mnist/train.py tells why
    dist.destroy_process_group()
    raise SystemExit(0 if accuracy >= arguments.at_least else 1)


if __name__ == "__main__":
    main()
