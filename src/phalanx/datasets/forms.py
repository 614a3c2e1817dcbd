"""Write a data set in the forms that libraries look for: as published, for Chainer, and for torchvision."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import struct
import tarfile
import zipfile
from typing import Any, Dict, List, Sequence, Tuple

from phalanx.datasets import pickles

LIBRARIES = ("MXNet", "Chainer", "torchvision")
CHAINER = "chainer"
_CIFAR = "cifar-10-batches-py"

# The shape, and the bytes in C order.
Array = Tuple[Tuple[int, ...], bytes]


class FormatError(Exception):
    """A file has the right name but not the content of its format."""


def write(name: str, entry: Dict[str, Any], contents: Dict[str, str], made: str) -> List[str]:
    """Write all forms below `made`; return their directories relative to it, the data set's own last."""
    own = os.path.join(made, name)
    chainer = os.path.join(CHAINER, entry["chainer"])
    torchvision = entry["torchvision"]
    for directory in (own, os.path.join(made, chainer), os.path.join(made, os.path.dirname(torchvision))):
        os.makedirs(directory, exist_ok=True)
    _KINDS[entry["kind"]](contents, own, os.path.join(made, chainer), os.path.join(made, torchvision))
    return [chainer, torchvision, name]


def _idx(contents: Dict[str, str], own: str, chainer: str, torchvision: str) -> None:
    os.makedirs(torchvision)
    for file, path in contents.items():
        _gzip(path, os.path.join(own, f"{file}.gz"))
    # chainer.datasets.get_mnist() reads these, and makes them from downloads when they are missing.
    for split, start in (("train", "train"), ("test", "t10k")):
        images, labels = (_idx_array(contents[f"{start}-{kind}-ubyte"]) for kind in ("images-idx3", "labels-idx1"))
        count = images[0][0]
        flat = ((count, len(images[1]) // count), images[1])
        _npz(os.path.join(chainer, f"{split}.npz"), {"x": flat, "y": labels})
    # torchvision.datasets.MNIST finds the unpacked files in raw/.
    for file, path in contents.items():
        os.rename(path, os.path.join(torchvision, file))


def _cifar10(contents: Dict[str, str], own: str, chainer: str, torchvision: str) -> None:
    ((file, path),) = contents.items()
    try:
        with tarfile.open(path) as archive:
            batches = {
                os.path.basename(member.name): _content(archive, member)
                for member in archive
                if member.isfile() and os.path.dirname(member.name) == _CIFAR
            }
        training = [_batch(batches[f"data_batch_{number}"]) for number in range(1, 6)]
        test = _batch(batches["test_batch"])
    except (EOFError, KeyError, ValueError, tarfile.TarError, pickles.PickleError) as error:
        raise FormatError(f"{file} is not CIFAR-10 as its authors pack it: {error!r}") from None
    images, labels = b"".join(batch[0] for batch in training), b"".join(batch[1] for batch in training)
    arrays = {
        "train_x": ((len(labels), 3072), images),
        "train_y": ((len(labels),), labels),
        "test_x": ((len(test[1]), 3072), test[0]),
        "test_y": ((len(test[1]),), test[1]),
    }
    _npz(os.path.join(chainer, "cifar-10.npz"), arrays)
    os.makedirs(torchvision)
    for batch, content in batches.items():
        with open(os.path.join(torchvision, batch), "wb") as out:
            out.write(content)
    os.rename(path, os.path.join(own, file))


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    return file.read() if file else b""


_KINDS = {"idx": _idx, "cifar10": _cifar10}


def _batch(content: bytes) -> Tuple[bytes, bytes]:
    """Return the images of 3,072 bytes each, and the labels, of a batch file."""
    batch = pickles.load(io.BytesIO(content))
    return batch[b"data"].content, bytes(batch[b"labels"])


def _gzip(path: str, packed: str) -> None:
    with open(path, "rb") as source, gzip.GzipFile(packed, "wb", compresslevel=6, mtime=0) as out:
        shutil.copyfileobj(source, out, 1 << 16)


def _idx_array(path: str) -> Array:
    """Return (shape, bytes) of an idx file of bytes."""
    with open(path, "rb") as file:
        content = file.read()
    dimensions = content[3]
    return struct.unpack_from(f">{dimensions}I", content, 4), content[4 + 4 * dimensions :]


def _npz(path: str, arrays: Dict[str, Array]) -> None:
    """Write {name: (shape, bytes)} as numpy.savez_compressed does."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (shape, content) in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                file.write(_npy_header(shape))
                file.write(content)


def _npy_header(shape: Sequence[int]) -> bytes:
    """Return the header of version 1.0 for an array of unsigned bytes, padded to 64 bytes (numpy.lib.format)."""
    text = repr({"descr": "|u1", "fortran_order": False, "shape": tuple(shape)})
    padded = text + " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded.encode()
