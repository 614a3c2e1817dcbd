"""Fashion-MNIST, or CIFAR-10, as arrays: images of (height, width, channels) bytes and their classes, 0 to 9."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

Images = tuple[np.ndarray, np.ndarray]

DEFAULT_DIRECTORY = Path("/usr/share/datasets/fashion-mnist")


def _read_idx(path: Path) -> np.ndarray:
    """Read a gzipped idx file: two zero bytes, the type (8: unsigned byte), the number of dimensions, their sizes."""
    content = gzip.decompress(path.read_bytes())
    if content[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is not an idx file of unsigned bytes")
    header = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:header], dtype=">u4")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def fashion_mnist(directory: Path, split: str) -> Images:
    """Load the 60,000 images of split `train`, or the 10,000 of `test`, from the four idx.gz files."""
    name = {"train": "train", "test": "t10k"}[split]
    try:
        images = _read_idx(directory / f"{name}-images-idx3-ubyte.gz")
        labels = _read_idx(directory / f"{name}-labels-idx1-ubyte.gz")
    except FileNotFoundError as missing:
        raise SystemExit(
            f"{missing.filename} is not there: `apt-get install dataset-fashion-mnist`, "
            "or name the directory of the four idx.gz files"
        ) from missing
    return images[..., None], labels.astype(np.int64)


def cifar10(directory: Path, split: str) -> Images:
    """Load the 50,000 images of split `train`, or the 10,000 of `test`, from the binary version's *.bin files.

    Each record is one byte for the class, and 3 planes (red, green, blue) of 32 × 32 bytes.
    """
    files = sorted(directory.glob({"train": "data_batch_*.bin", "test": "test_batch.bin"}[split]))
    if not files:
        raise SystemExit(f"there are no CIFAR-10 files (*.bin) for split {split} in {directory}")
    records = np.concatenate([np.fromfile(file, np.uint8) for file in files]).reshape(-1, 1 + 3 * 32 * 32)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), records[:, 0].astype(np.int64)


def load(directory: Path, split: str) -> Images:
    """Load what the directory contains: CIFAR-10's binary version (*.bin), else Fashion-MNIST."""
    return cifar10(directory, split) if any(directory.glob("*.bin")) else fashion_mnist(directory, split)
