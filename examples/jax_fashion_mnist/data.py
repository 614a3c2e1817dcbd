"""Fashion-MNIST as arrays: images of 28 × 28 grey bytes in rows of 784, and their classes, 0 to 9."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

DEFAULT_DIRECTORY = Path("/usr/share/datasets/fashion-mnist")


def _read_idx(path: Path, header: int) -> np.ndarray:
    """Read the data of a gzipped idx file, after its header of 4 bytes and 4 per dimension."""
    return np.frombuffer(gzip.decompress(path.read_bytes()), dtype=np.uint8, offset=header)


def load(directory: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Load the 60,000 images of split `train`, or the 10,000 of `t10k`, from the four idx.gz files."""
    try:
        images = _read_idx(directory / f"{split}-images-idx3-ubyte.gz", header=16)
        labels = _read_idx(directory / f"{split}-labels-idx1-ubyte.gz", header=8)
    except FileNotFoundError as missing:
        raise SystemExit(
            f"{missing.filename} is not there: `apt-get install dataset-fashion-mnist`, "
            "or name the directory of the four idx.gz files with --data"
        ) from missing
    return images.reshape(-1, 784), labels.astype(np.int32)
