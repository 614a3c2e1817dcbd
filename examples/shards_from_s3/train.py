"""Train with PyTorch DDP on shards that stay in S3: `train.py s3://bucket/prefix`, started by torchrun."""

import argparse
import io
import time

import numpy as np
import torch
import torch.distributed as dist
from bucket import Bucket
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import phalanx.shards


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU()),
        *(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 2)),
    )


def batches(url: str, bucket: Bucket, size: int, epoch: int):
    """Yield this rank's part of an epoch in batches, as many on every rank: each step exchanges gradients."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    steps = sum(shard.samples for shard in phalanx.shards.load(url, bucket.open)) // ranks // size
    samples = phalanx.shards.read(url, rank, ranks, epoch, bucket.open)
    for _ in range(steps):
        batch = [next(samples) for _ in range(size)]
        images = torch.from_numpy(np.stack([np.load(io.BytesIO(one["npy"])) for one in batch]))
        yield (images[:, None].float() - 76) / 64, torch.tensor([int(one["cls"]) for one in batch])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=50)
    given = parser.parse_args()
    url, bucket = given.url.rstrip("/"), Bucket(given.url)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for epoch in range(given.epochs):
        counts = torch.zeros(2, dtype=torch.double)
        for images, labels in batches(url, bucket, given.batch_size, epoch):
            scores = model(images)
            optimizer.zero_grad()
            nn.functional.cross_entropy(scores, labels).backward()
            optimizer.step()
            counts += torch.tensor([(scores.argmax(1) == labels).sum(), len(labels)])
        dist.all_reduce(counts)
        if dist.get_rank() == 0:
            right, seen = counts
            print(f"epoch {epoch + 1}: {seen:.0f} images from {url}, accuracy {right / seen:.3f}", flush=True)
    time.sleep(1)  # examples/fashion_mnist/train.py tells why
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
