"""Read pickles of NumPy's arrays without NumPy, and without running code that a pickle names."""

from __future__ import annotations

import pickle
import struct
from typing import Any, Dict, Sequence

PickleError = pickle.UnpicklingError
_CLASSES = {
    ("numpy.core.multiarray", "_reconstruct"): "array",
    ("numpy._core.multiarray", "_reconstruct"): "array",
    ("numpy", "ndarray"): "class",
    ("numpy", "dtype"): "dtype",
}
# A grey value k is stored as the float k/256.
_GREY = {struct.unpack("<I", struct.pack("<f", value / 256))[0]: value for value in range(256)}


class Array:
    """An array: its shape, its type as NumPy spells it ("f4"), and its bytes in C order, little-endian."""

    def __setstate__(self, state: Sequence[Any]) -> None:
        _version, self.shape, dtype, _is_fortran, self.content = state
        self.kind = dtype.kind


class Dtype:
    def __init__(self, kind: Any, *_: object) -> None:
        self.kind = kind.decode() if isinstance(kind, bytes) else kind

    def __setstate__(self, state: object) -> None:
        pass


class Unpickler(pickle.Unpickler):
    """Reads arrays, and nothing that would run code."""

    def find_class(self, module: str, name: str) -> Any:
        known = _CLASSES.get((module, name))
        if known is None:
            raise PickleError(f"{module}.{name} is not part of an array")
        return {"array": lambda *_: Array(), "class": Array, "dtype": Dtype}[known]


def load(file: Any) -> Any:
    """Load a pickle of Python 2 or 3, whose strings become bytes if Python 2 wrote them."""
    return Unpickler(file, encoding="bytes").load()


def mnist(file: Any) -> Dict[str, bytes]:
    """Return MNIST's four idx files, from its well-known pickle of (training, validation, test)."""
    training, held_out, test = load(file)
    return {
        "train-images-idx3-ubyte": idx((60000, 28, 28), _grey(training[0]) + _grey(held_out[0])),
        "train-labels-idx1-ubyte": idx((60000,), _labels(training[1]) + _labels(held_out[1])),
        "t10k-images-idx3-ubyte": idx((10000, 28, 28), _grey(test[0])),
        "t10k-labels-idx1-ubyte": idx((10000,), _labels(test[1])),
    }


def idx(shape: Sequence[int], content: bytes) -> bytes:
    """Return an idx file of bytes: its fourth byte counts the dimensions, which follow as big-endian numbers."""
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + content


def _grey(images: Array) -> bytes:
    return bytes(map(_GREY.__getitem__, memoryview(images.content).cast("I")))


def _labels(labels: Array) -> bytes:
    return bytes(memoryview(labels.content).cast("q").tolist())
