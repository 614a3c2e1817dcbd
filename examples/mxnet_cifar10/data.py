"""CIFAR-10's binary files as arrays; without them Fashion-MNIST in their shape: three planes of 32 × 32 bytes."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
_IMAGE = 3 * 32 * 32


def load(directory: str | None, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Load the images of split `train` or `test`, bytes of shape (n, 3, 32, 32), and their classes."""
    images, labels = _cifar10(Path(directory), split) if directory else _fashion_mnist(split)
    return images, labels.astype(np.float32)


def numbers(images: np.ndarray) -> np.ndarray:
    """Return images as float32 in 0–1. Choose some before: as numbers, 60,000 take 740 MB."""
    return images.astype(np.float32) / 255


def _cifar10(directory: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Read records of one byte for the class and 3,072 for the image's red, green and blue planes."""
    files = sorted(directory.glob({"train": "data_batch_*.bin", "test": "test_batch.bin"}[split]))
    if not files:
        raise SystemExit(f"there are no CIFAR-10 files (*.bin) for {split} in {directory}")
    records = np.concatenate([np.fromfile(file, np.uint8) for file in files]).reshape(-1, 1 + _IMAGE)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def _fashion_mnist(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Give Fashion-MNIST's images a margin of two pixels, and the same values in all three planes."""
    name = {"train": "train", "test": "t10k"}[split]
    images = _idx(_FASHION_MNIST / f"{name}-images-idx3-ubyte.gz").reshape(-1, 1, 28, 28)
    framed = np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2)))
    return np.broadcast_to(framed, (len(framed), 3, 32, 32)), _idx(_FASHION_MNIST / f"{name}-labels-idx1-ubyte.gz")


def _idx(path: Path) -> np.ndarray:
    """Return the bytes behind an idx file's header: 4, the last of which counts the dimensions, and 4 for each."""
    if not path.exists():
        raise SystemExit(f"{path} is missing: `apt-get install dataset-fashion-mnist`, or --data-dir with CIFAR-10")
    content = gzip.decompress(path.read_bytes())
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])
