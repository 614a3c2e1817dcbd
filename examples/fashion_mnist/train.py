"""Train a small network on Fashion-MNIST with PyTorch's DistributedDataParallel. Start it with torchrun."""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from data import DEFAULT_DIRECTORY, load_training
from model import Network
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler, Subset

# The directory that `phalanx run --checkpoint` keeps for the job.
OUT = Path(os.environ.get("PHALANX_CHECKPOINT", "out"))
COLUMNS = ["epoch", "main/loss", "validation/main/loss", "main/accuracy", "validation/main/accuracy", "elapsed_time"]


class Shard(Sampler[int]):
    """Yields every world_size-th index without DistributedSampler's padding, so that each image counts exactly once."""

    def __init__(self, dataset: Subset) -> None:
        self.indices = range(dist.get_rank(), len(dataset), dist.get_world_size())

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


def batches(dataset: Subset, sampler: Sampler[int], batch_size: int) -> DataLoader:
    """Load whole batches at once: the data are in memory, and fetching single items is slow."""
    return DataLoader(dataset, sampler=BatchSampler(sampler, batch_size, drop_last=False), batch_size=None)


def run_epoch(
    model: nn.Module, loader: DataLoader, device: torch.device, optimizer: torch.optim.Optimizer | None = None
) -> tuple[float, float]:
    """Make one pass over the data, training if there is an optimizer; return mean loss and accuracy over all."""
    totals = torch.zeros(3, dtype=torch.float64, device=device)  # loss, correct, images
    model.train(optimizer is not None)
    with torch.set_grad_enabled(optimizer is not None):
        for batch in loader:
            images, labels = (tensor.to(device) for tensor in batch)
            scores = model(images)
            loss = nn.functional.cross_entropy(scores, labels)
            if optimizer:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            right = (scores.argmax(dim=1) == labels).sum()
            totals += torch.stack([loss.detach() * len(labels), right, torch.tensor(len(labels), device=device)])
    dist.all_reduce(totals)
    return float(totals[0] / totals[2]), float(totals[1] / totals[2])


def save(path: Path, state: dict) -> None:
    """Write a temporary file and rename it, so that a reader never sees a partial checkpoint."""
    beside = path.with_suffix(".partial")
    torch.save(state, beside)
    beside.replace(path)


def write_metrics(path: Path, history: list[list[float]]) -> None:
    beside = path.with_suffix(".partial")
    with beside.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *history])
    beside.replace(path)


def print_row(row: list[float]) -> None:
    cells = (f"{value:<{len(name) + 4}.6g}" for name, value in zip(COLUMNS, row, strict=True))
    print("".join(cells).rstrip(), flush=True)


def resume(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> list:
    """Load the checkpoint, if there is one; return the rows of the completed epochs."""
    if not checkpoint.exists():
        return []
    state = torch.load(checkpoint, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["history"]


def print_table_so_far(history: list[list[float]], images: int, device: torch.device) -> None:
    print(f"{dist.get_world_size()} processes, {images:,} training images, device {device.type}", flush=True)
    print("    ".join(COLUMNS), flush=True)
    for row in history:
        print_row(row)


def with_exchange(model: DistributedDataParallel, choice: str, images: torch.Tensor) -> DistributedDataParallel:
    """Exchange gradients as phalanx.torch's CHOICES name it, or as it suggests after measuring."""
    import phalanx.torch

    if choice != "suggest":
        return phalanx.torch.apply(model, choice)
    suggestion = phalanx.torch.suggest(model, images)
    if dist.get_rank() == 0:
        print(suggestion, flush=True)
    return phalanx.torch.apply(model, suggestion)


def train(arguments: argparse.Namespace, device: torch.device) -> None:
    torch.manual_seed(arguments.seed)
    training, validation = load_training(arguments.data)
    training.indices = training.indices[: arguments.images]
    sampler = DistributedSampler(training, shuffle=True, seed=arguments.seed)
    training_batches = batches(training, sampler, arguments.batch_size)
    validation_batches = batches(validation, Shard(validation), 500)

    # This memory format makes convolutions on a CPU a third faster.
    network = Network(arguments.hidden).to(device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    model = DistributedDataParallel(network)
    if arguments.exchange:
        model = with_exchange(model, arguments.exchange, next(iter(training_batches))[0].to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.learning_rate)
    checkpoint = arguments.out / "checkpoint.pt"
    history = resume(checkpoint, model.module, optimizer, device)
    is_first = dist.get_rank() == 0
    if is_first:
        arguments.out.mkdir(parents=True, exist_ok=True)
        print_table_so_far(history, len(training), device)

    started = time.monotonic() - (history[-1][-1] if history else 0.0)
    for epoch in range(len(history) + 1, arguments.epochs + 1):
        sampler.set_epoch(epoch)
        loss, accuracy = run_epoch(model, training_batches, device, optimizer)
        validation_loss, validation_accuracy = run_epoch(model.module, validation_batches, device)
        history.append([epoch, loss, validation_loss, accuracy, validation_accuracy, time.monotonic() - started])
        if is_first:
            print_row(history[-1])
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "history": history}
            save(checkpoint, state)
            write_metrics(arguments.out / "metrics.csv", history)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DEFAULT_DIRECTORY, help="the four idx.gz files (%(default)s)")
    parser.add_argument("--out", type=Path, default=OUT, help="for checkpoint.pt, metrics.csv (%(default)s)")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="images per process and step (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--threads", type=int, default=1, help="threads per process, on a CPU (%(default)s)")
    parser.add_argument("--images", type=int, help="train on the first N images only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden", type=int, default=128, help="width of the hidden layer (%(default)s)")
    parser.add_argument("--exchange", help="how to exchange gradients: a choice of phalanx.torch, or `suggest`")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        train(arguments, device)
    finally:
        # A thread of gloo lets go of a tensor after the wait for it has ended, and needs Python's lock then. If that
        # comes too late, the process hangs here, or aborts at its exit (pytorch issue 190489).
        time.sleep(1)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
