"""Train with DeepSpeed's ZeRO stage 1: every rank has the network, and its share of the optimizer's state."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from data import DEFAULT_DIRECTORY, load
from model import Network
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset


def configuration(arguments: argparse.Namespace) -> dict:
    return {
        "train_micro_batch_size_per_gpu": arguments.batch_size,
        # PyTorch's Adam, because DeepSpeed's would have to be compiled first.
        "optimizer": {"type": "Adam", "params": {"lr": arguments.learning_rate, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
        "steps_per_print": 1_000_000,
    }


def run_epoch(engine: deepspeed.DeepSpeedEngine, loader: DataLoader) -> float:
    """Make one pass over this rank's share of the images; return the mean loss over all ranks."""
    total = torch.zeros(2, device=engine.device)  # loss, batches
    for batch in loader:
        images, labels = (tensor.to(engine.device) for tensor in batch)
        loss = nn.functional.cross_entropy(engine(images), labels)
        engine.backward(loss)
        engine.step()
        total += torch.stack([loss.detach(), torch.ones_like(loss)])
    dist.all_reduce(total)
    return float(total[0] / total[1])


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(arguments.seed)
    network = Network()
    engine, *_ = deepspeed.initialize(
        model=network, model_parameters=network.parameters(), config=configuration(arguments)
    )
    images = load(arguments.data, "train")
    images = Subset(images, range(min(arguments.images, len(images))))
    sampler = DistributedSampler(images, seed=arguments.seed)
    loader = DataLoader(images, batch_size=arguments.batch_size, sampler=sampler)
    share = sum(part.numel() for part in engine.optimizer.single_partition_of_fp32_groups)
    everything = sum(weights.numel() for weights in network.parameters())
    print(
        f"rank {dist.get_rank()} of {dist.get_world_size()} optimizes {share:,} of {everything:,} weights", flush=True
    )
    started = time.monotonic()
    for epoch in range(1, arguments.epochs + 1):
        sampler.set_epoch(epoch)
        loss = run_epoch(engine, loader)
        engine.save_checkpoint(str(arguments.out), tag=f"epoch{epoch}")
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss:.4f}, {time.monotonic() - started:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DEFAULT_DIRECTORY, help="the four idx.gz files (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="for checkpoints (%(default)s)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--images", type=int, default=60_000, help="train on the first N images only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--local_rank", type=int, default=0, help="set by DeepSpeed's launcher")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    # It serves only ranks that share a node, and compiling it at first use takes a minute on every node.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed()
    try:
        train(arguments)
    finally:
        time.sleep(1)  # examples/fashion_mnist/train.py tells why
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
