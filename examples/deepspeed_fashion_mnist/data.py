"""Fashion-MNIST as tensors: 60,000 training and 10,000 test images of 28 × 28 grey values in ten classes."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

DEFAULT_DIRECTORY = Path("/usr/share/datasets/fashion-mnist")


def _read_idx(path: Path, header: int) -> torch.Tensor:
    """Read the data of a gzipped idx file, after its header of 4 bytes and 4 per dimension."""
    return torch.from_numpy(np.frombuffer(gzip.decompress(path.read_bytes()), dtype=np.uint8, offset=header).copy())


def load(directory: Path, split: str) -> TensorDataset:
    """Load the `train` (60,000) or `t10k` (10,000) images, as bytes, with their labels."""
    try:
        images = _read_idx(directory / f"{split}-images-idx3-ubyte.gz", header=16)
        labels = _read_idx(directory / f"{split}-labels-idx1-ubyte.gz", header=8)
    except FileNotFoundError as missing:
        raise SystemExit(
            f"{missing.filename} is not there: `apt-get install dataset-fashion-mnist`, "
            "or name the directory of the four idx.gz files with --data"
        ) from missing
    return TensorDataset(images.reshape(-1, 1, 28, 28), labels.long())
