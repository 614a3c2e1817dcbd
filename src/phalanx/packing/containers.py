"""The two kinds of shards: WebDataset's tar files, and MXNet's RecordIO files with their indexes."""

from __future__ import annotations

import hashlib
import json
import struct
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import IO

from phalanx.packing.samples import PackError, Sample, extension_of

_TAR_LIMIT = (8 << 30) - 1
_RECORD_LIMIT = (1 << 29) - 1
_MAGIC = struct.pack("<I", 0xCED7230A)
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)


class Writer:
    """Writes bytes to a file, and counts and hashes them."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.bytes = 0
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, content: bytes) -> None:
        self.file.write(content)
        self._digest.update(content)
        self.bytes += len(content)


class Container(ABC):
    """Writes one shard: `add` each sample, then `end`. The first of EXTENSIONS is the shard's own."""

    EXTENSIONS: tuple[str, ...] = ()
    LIMIT_BYTES = 0

    def __init__(self, writers: dict[str, Writer]) -> None:
        self._writers = writers
        self._out = writers[self.EXTENSIONS[0]]

    def add(self, number: int, sample: Sample, content: bytes) -> None:
        """Write a sample, and its line as im2rec writes it: number, labels and path, separated by tabs."""
        if len(content) > self.LIMIT_BYTES:
            raise PackError(
                f"{sample.name} has {len(content)} bytes, and a sample may have {self.LIMIT_BYTES}",
                code="sample-too-large",
            )
        self._write(number, sample, content)
        labels = "\t".join(f"{label:f}" for label in sample.labels)
        self._writers["lst"].write(f"{number}\t{labels}\t{sample.name}\n".encode(errors="surrogateescape"))

    def end(self) -> None:  # noqa: B027 (only some kinds have an end)
        """Write what closes the shard."""

    @abstractmethod
    def _write(self, number: int, sample: Sample, content: bytes) -> None:
        """Write a sample's content and labels as this kind of shard has them."""


class Tar(Container):
    """A tar file with two members for each sample: its content, and its label as `cls`, or as `label.json`."""

    EXTENSIONS = ("tar", "lst")
    LIMIT_BYTES = _TAR_LIMIT

    def end(self) -> None:
        self._out.write(bytes(-self._out.bytes % tarfile.RECORDSIZE or tarfile.RECORDSIZE))

    def _write(self, number: int, sample: Sample, content: bytes) -> None:
        self._member(f"{number:08}.{extension_of(sample)}", content)
        label = sample.labels[0]
        if len(sample.labels) == 1 and label.is_integer() and label >= 0:
            self._member(f"{number:08}.cls", b"%d" % label)
        else:
            self._member(
                f"{number:08}.label.json", json.dumps(sample.labels if len(sample.labels) > 1 else label).encode()
            )

    def _member(self, name: str, content: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        self._out.write(info.tobuf(tarfile.USTAR_FORMAT))
        self._out.write(content + bytes(-len(content) % tarfile.BLOCKSIZE))


class RecordIO(Container):
    """A RecordIO file, and its index with the number and the offset of each record."""

    EXTENSIONS = ("rec", "idx", "lst")
    LIMIT_BYTES = _RECORD_LIMIT - (1 << 20)  # for its header

    def _write(self, number: int, sample: Sample, content: bytes) -> None:
        self._writers["idx"].write(f"{number}\t{self._out.bytes}\n".encode())
        # mx.recordio.IRHeader: how many labels follow it, the label if none do, and two numbers.
        count = len(sample.labels)
        if count == 1:
            header = struct.pack("<IfQQ", 0, sample.labels[0], number, 0)
        else:
            header = struct.pack(f"<IfQQ{count}f", count, 0.0, number, 0, *sample.labels)
        for kind, piece in _pieces(header + content):
            self._out.write(_MAGIC + struct.pack("<I", kind << 29 | len(piece)) + piece + bytes(-len(piece) % 4))


def _pieces(record: bytes) -> Iterator[tuple[int, bytes]]:
    """Cut a record where it contains the number that begins records, which is left out, as dmlc-core does."""
    cuts = [-4, *_cuts(record), len(record)]
    for begin, end in zip(cuts, cuts[1:]):
        kind = _WHOLE if len(cuts) == 2 else _FIRST if begin < 0 else _LAST if end == len(record) else _MIDDLE
        yield kind, record[begin + 4 : end]


def _cuts(record: bytes) -> list[int]:
    found, at = [], record.find(_MAGIC)
    while at >= 0:
        if at % 4 == 0:
            found.append(at)
        at = record.find(_MAGIC, at + (1 if at % 4 else 4))
    return found


KINDS: dict[str, type[Container]] = {"webdataset": Tar, "recordio": RecordIO}
