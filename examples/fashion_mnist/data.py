"""Fashion-MNIST as tensors: 60,000 training and 10,000 test images of 28 × 28 grey values in ten classes."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

DEFAULT_DIRECTORY = Path("/usr/share/datasets/fashion-mnist")
VALIDATION_IMAGES = 5_000


def read_idx(path: Path) -> torch.Tensor:
    """Read one gzipped idx file: two zero bytes, the type (8: unsigned byte), the number of dimensions, their sizes."""
    with gzip.open(path) as file:
        content = file.read()
    zeros, kind, dimensions = int.from_bytes(content[:2], "big"), content[2], content[3]
    if zeros != 0 or kind != 8:
        raise ValueError(f"{path} is not an idx file of unsigned bytes")
    header = 4 + 4 * dimensions
    shape = np.frombuffer(content[4:header], dtype=">u4").tolist()
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8, offset=header).copy()).reshape(shape)


def load(directory: Path, split: str) -> TensorDataset:
    """Load the `train` (60,000) or `t10k` (10,000) images, as bytes, with their labels."""
    try:
        images = read_idx(directory / f"{split}-images-idx3-ubyte.gz")
        labels = read_idx(directory / f"{split}-labels-idx1-ubyte.gz")
    except FileNotFoundError as missing:
        raise SystemExit(
            f"{missing.filename} is not there: `apt-get install dataset-fashion-mnist`, "
            "or name the directory of the four idx.gz files with --data"
        ) from missing
    return TensorDataset(images.unsqueeze(1), labels.long())


def load_training(directory: Path) -> tuple[Subset, Subset]:
    """Load the training images, shuffled with a fixed seed: 55,000 for training, 5,000 for validation."""
    dataset = load(directory, "train")
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()
    return Subset(dataset, order[:-VALIDATION_IMAGES]), Subset(dataset, order[-VALIDATION_IMAGES:])
