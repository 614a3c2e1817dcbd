"""Read the shards that `phalanx data shard` packed: each rank its own part of an epoch, for any number of ranks.

This file needs Python 3.9, and nothing else of phalanx. `phalanx run` sends it with every job, where
`import phalanx.shards` finds it; it may as well be copied.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable, Optional, Union

MANIFEST = "shards.json"
"""The list of a directory's shards, which is written when all of them are complete."""

_BLOCK = 512
# A larger buffer takes no less time to read, and puts more of the training out of the processor's cache.
_BUFFER_BYTES = 1 << 15
_NAME = re.compile(r"shard-[0-9]{5,}\.(tar|rec|idx|lst)")
Directory = Union[str, "os.PathLike[str]"]
Opener = Callable[[str], BinaryIO]
"""Opens a file by its path, for reading from any position, where the shards are in no directory: objects in S3."""


class ShardError(Exception):
    """A shard is missing, was cut short, or was changed."""

    code = "bad-shards"


@dataclass(frozen=True)
class File:
    """A file in a directory of shards, as it was packed."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Shard:
    """A shard, the first of `files`. The others are its `.lst`, and the `.idx` of a RecordIO file."""

    samples: int
    files: tuple[File, ...]


@dataclass(frozen=True)
class Part:
    """Some samples of a shard: `first` counts from 0, and `last` is not among them."""

    path: str
    first: int
    last: int

    @property
    def index(self) -> str:
        """The path of the index of a RecordIO file."""
        return f"{os.path.splitext(self.path)[0]}.idx"


def load(directory: Directory, opener: Optional[Opener] = None) -> list[Shard]:
    """Return the shards of a directory in their order. Raises ShardError."""
    path = os.path.join(directory, MANIFEST)
    try:
        with (opener or _open)(path) as file:
            shards = [_shard(one) for one in json.load(file)["shards"]]
    except FileNotFoundError:
        raise ShardError(f"{path} is missing: the shards are not complete") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ShardError(f"{path} is not a list of shards: {error}") from error
    if not shards:
        raise ShardError(f"{path} lists no shards")
    return shards


def parts(directory: Directory, rank: int, ranks: int, epoch: int = 0, opener: Optional[Opener] = None) -> list[Part]:
    """Return what this rank reads in this epoch, with the sizes of its shards checked. Raises ShardError.

    Every sample is in the parts of one rank, and ranks differ by one sample at most. The order of the shards depends on
    the epoch, and is the same on all ranks. With an opener, a shard that was cut short is found when it is read.
    """
    shards = load(directory, opener)
    random.Random(f"epoch {epoch}").shuffle(shards)
    mine = [(shards[number], first, last) for number, first, last in split([s.samples for s in shards], rank, ranks)]
    wrong = [problem for shard, _, _ in mine for problem in sizes_wrong(directory, shard)] if opener is None else []
    if wrong:
        raise ShardError("; ".join(wrong))
    return [Part(os.path.join(directory, shard.files[0].name), first, last) for shard, first, last in mine]


def split(counts: Sequence[int], rank: int, ranks: int) -> list[tuple[int, int, int]]:
    """Return the rank's samples as (shard, first, last), where shard `n` has `counts[n]` samples."""
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} is not one of {ranks} ranks, which count from 0")
    begin, end = (sum(counts) * number // ranks for number in (rank, rank + 1))
    found, before = [], 0
    for number, count in enumerate(counts):
        first, last = max(0, begin - before), min(count, end - before)
        if first < last:
            found.append((number, first, last))
        before += count
    return found


def read(
    directory: Directory, rank: int = 0, ranks: int = 1, epoch: int = 0, opener: Optional[Opener] = None
) -> Iterator[dict[str, Any]]:
    """Yield the samples of this rank's part from WebDataset shards, as WebDataset's own reader does. Raises ShardError.

    In a worker of PyTorch's DataLoader it yields that worker's part of the rank's. An `opener` opens `directory/NAME`.
    """
    worker, workers = _worker()
    mine = parts(directory, rank * workers + worker, ranks * workers, epoch, opener)
    for number, part in enumerate(mine):
        for one in mine[number : number + 2] if opener is None else ():
            _read_ahead(one)
        with (opener or _open)(part.path) as file:
            try:
                yield from _samples(file, part)
            except (ValueError, EOFError) as error:
                raise ShardError(f"{part.path} is damaged: {error}") from error


def sizes_wrong(directory: Directory, shard: Shard) -> list[str]:
    """Return which files of a shard are missing or have another size than they were packed with."""
    return list(filter(None, (_size_wrong(directory, file) for file in shard.files)))


def _size_wrong(directory: Directory, file: File) -> str:
    path = os.path.join(directory, file.name)
    try:
        size = os.stat(path).st_size
    except FileNotFoundError:
        return f"{path} is missing"
    if size == file.bytes:
        return ""
    return f"{path} {'was cut short' if size < file.bytes else 'was changed'}: {size} bytes instead of {file.bytes}"


def _shard(record: Any) -> Shard:
    files = tuple(File(str(one["name"]), int(one["bytes"]), str(one["sha256"])) for one in record["files"])
    if not files or not all(_NAME.fullmatch(file.name) for file in files):
        raise ValueError("a file's name is not that of a shard")
    return Shard(int(record["samples"]), files)


def _worker() -> tuple[int, int]:
    torch: Any = sys.modules.get("torch.utils.data")
    worker = torch.get_worker_info() if torch else None
    return (worker.id, worker.num_workers) if worker else (0, 1)


def _samples(file: BinaryIO, part: Part) -> Iterator[dict[str, Any]]:
    """Yield samples from a tar file as this version of phalanx writes it: two members for each sample."""
    read, header = file.read, _content(file, _BLOCK)
    for _ in range(2 * part.first):
        size = int(header[124:135], 8)
        file.seek(size + -size % _BLOCK, os.SEEK_CUR)
        header = _content(file, _BLOCK)
    for _ in range(part.first, part.last):
        sample: dict[str, Any] = {"__url__": part.path}
        for _ in (1, 2):
            sample["__key__"], _, extension = header.partition(b"\0")[0].decode().partition(".")
            size = int(header[124:135], 8)
            padded = size + -size % _BLOCK
            # The next header as well, because one call for both takes less time; blocks of zeros end the file.
            content = read(padded + _BLOCK)
            sample[extension], header = content[:size], content[padded:]
            if len(header) != _BLOCK:
                raise EOFError("it ended too early")
        yield sample


def _open(path: str) -> BinaryIO:
    return open(path, "rb", buffering=_BUFFER_BYTES)


def _read_ahead(part: Part) -> None:
    """Have the system read a shard while others are in use."""
    with open(part.path, "rb") as file:
        if sys.platform != "darwin":
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def _content(file: BinaryIO, size: int) -> bytes:
    content = file.read(size)
    if len(content) != size:
        raise EOFError("it ended too early")
    return content
