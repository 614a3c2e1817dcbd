"""Tensor parallelism: train one network, whose hidden layers are split over all ranks, on Fashion-MNIST."""

from __future__ import annotations

import argparse
import gzip
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

BATCH = 200


def read(directory: Path, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Load images as rows of 784 numbers around 0, and labels from 0 to 9."""
    with gzip.open(directory / f"{split}-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(directory / f"{split}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    return (torch.from_numpy(images.astype(np.float32)) - 72.9) / 90.0, torch.from_numpy(labels.astype(np.int64))


def network(units: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(784, units), nn.ReLU(), nn.Linear(units, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--units", type=int, default=512)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--at-least", type=float, default=0.0, help="fail if the test accuracy is lower")
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    init_process_group("nccl" if device == "cuda" else "gloo")
    mesh = init_device_mesh(device, (int(os.environ["WORLD_SIZE"]),))
    torch.manual_seed(0)  # all ranks draw the same weights and the same batches
    # The first layer's outputs and the second's inputs are split, so one allreduce combines them.
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(network(chosen.units).to(device), mesh, plan)
    mine = sum(part.to_local().numel() for part in model.parameters() if isinstance(part, DTensor))
    whole = sum(parameter.numel() for parameter in model.parameters())
    print(f"rank {mesh.get_rank()} holds {mine:,} of {whole:,} weights", flush=True)
    images, labels = read(chosen.data, "train")
    train(model, images.to(device), labels.to(device), chosen.steps, mesh.get_rank() == 0)
    images, labels = read(chosen.data, "t10k")
    accuracy = test(model, images.to(device), labels.to(device))
    if mesh.get_rank() == 0:
        print(f"test accuracy {accuracy:.4f} on 10,000 images", flush=True)
    time.sleep(1)  # examples/fashion_mnist/train.py tells why
    destroy_process_group()
    if accuracy < chosen.at_least:
        sys.exit(f"the test accuracy is below {chosen.at_least}")


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, steps: int, prints: bool) -> None:
    """Train on every batch on every rank: the network is split, not the data."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(1, steps + 1):
        batch = torch.randint(len(images), (BATCH,))
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if prints and step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


@torch.no_grad()
def test(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    return (model(images).argmax(dim=1) == labels).float().mean().item()


if __name__ == "__main__":
    main()
