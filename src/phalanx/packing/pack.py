"""Packs samples into shards: each appears under its name when it is complete, and their list when all are.

A journal beside them lists the complete ones, so that the same command goes on after an interruption.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import IO

from phalanx.guest_file import Content
from phalanx.packing.containers import KINDS, Writer
from phalanx.packing.samples import PackError, Sample, Samples
from phalanx.shards import MANIFEST, File, Shard, load, sizes_wrong

JOURNAL = ".phalanx-shards"
_PART = ".phalanx-part."
Show = Callable[[int, int], None]
"""Called with the bytes that are packed, and all bytes."""
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Packed:
    """What lies in a directory of shards."""

    directory: str
    format: str
    samples: int
    shards: int
    bytes: int
    classes: tuple[str, ...]
    left_out: int


@dataclass(frozen=True)
class Plan:
    """Which samples go into which shard, in an order that the seed decides. Shards differ by one sample at most."""

    format: str
    shards: list[list[tuple[int, Sample]]]

    @property
    def digest(self) -> str:
        """What a journal must have been written for: other samples, and changed ones, give other shards."""
        listed = [[(n, s.name, s.labels, s.bytes, s.modified_ns) for n, s in shard] for shard in self.shards]
        return hashlib.sha256(json.dumps([self.format, listed]).encode()).hexdigest()


def plan(samples: Samples, kind: str, seed: int, shard_bytes: int, shards: int = 0) -> Plan:
    """Plan this number of shards, or as many as make them about `shard_bytes` large."""
    order = list(samples.all)
    random.Random(seed).shuffle(order)
    count = shards or -(-sum(one.bytes for one in order) // shard_bytes)
    count = max(1, min(count, len(order)))
    numbered = list(enumerate(order))
    cuts = [len(order) * number // count for number in range(count + 1)]
    return Plan(kind, [numbered[begin:end] for begin, end in zip(cuts, cuts[1:])])


def pack(samples: Samples, planned: Plan, directory: str, show: Show) -> Packed:
    """Write the shards into a directory that is empty or has an interrupted run's. Raises PackError, OSError."""
    os.makedirs(directory, exist_ok=True)
    with _journal(directory, planned.digest) as journal:
        complete = _complete(journal)
        try:
            _pack_rest(samples, planned, directory, journal, complete, show)
        finally:
            # Nothing to go on with: the list is written, or no shard is, not even one that is not noted yet.
            if MANIFEST in (made := os.listdir(directory)) or made == [JOURNAL]:
                os.unlink(journal.name)
    size = sum(file.bytes for shard in complete for file in shard.files)
    count = len(samples.all)
    return Packed(directory, planned.format, count, len(complete), size, samples.classes, samples.left_out)


def _pack_rest(
    samples: Samples, planned: Plan, directory: str, journal: IO[str], complete: list[Shard], show: Show
) -> None:
    """Write the shards that are not complete, and their list."""
    sizes = [sum(one.bytes for _, one in shard) for shard in planned.shards]
    _require_space(directory, sum(sizes[len(complete) :]))
    for number in range(len(complete), len(sizes)):
        shard = _shard(directory, planned.format, number, planned.shards[number])
        journal.write(json.dumps(asdict(shard)) + "\n")
        journal.flush()
        complete.append(shard)
        show(sum(sizes[: number + 1]), sum(sizes))
    _write_manifest(directory, planned.format, samples.classes, complete)


@contextlib.contextmanager
def _journal(directory: str, digest: str) -> Iterator[IO[str]]:
    """Open the journal of these samples, behind its first line, and keep others from writing it."""
    path = os.path.join(directory, JOURNAL)
    others = sorted(set(os.listdir(directory)) - {JOURNAL})
    if MANIFEST in others:
        raise PackError(
            f"{directory} has shards already",
            "Choose another directory; `phalanx data verify` reads them.",
            code="directory-in-use",
        )
    if others and not os.path.exists(path):
        raise PackError(f"{directory} is not empty: {others[0]}", "Choose another directory.", code="directory-in-use")
    with open(path, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PackError(
                f"another command packs into {directory}", "Wait for its end.", code="directory-in-use"
            ) from None
        file.seek(0)
        known = file.readline()
        if known and known != f"{digest}\n":
            raise PackError(
                f"{directory} has some shards of other samples, or of other options",
                "Choose another directory, or delete this one.",
                code="directory-in-use",
            )
        if not known:
            file.write(f"{digest}\n")
        yield file


def _complete(journal: IO[str]) -> list[Shard]:
    """Return the shards that the journal lists, and cut off a last line that is not complete."""
    found: list[Shard] = []
    position = journal.tell()
    while (line := journal.readline()).endswith("\n"):
        record = json.loads(line)
        found.append(Shard(record["samples"], tuple(File(**one) for one in record["files"])))
        position = journal.tell()
    journal.seek(position)
    journal.truncate()
    return found


def _shard(directory: str, kind: str, number: int, samples: Sequence[tuple[int, Sample]]) -> Shard:
    """Write a shard's files in progress, and give them their names when all are on the disk."""
    extensions = KINDS[kind].EXTENSIONS
    parts = {extension: os.path.join(directory, _PART + extension) for extension in extensions}
    try:
        writers = _written(parts, kind, samples)
        files = tuple(File(f"shard-{number:05}.{one}", writers[one].bytes, writers[one].sha256) for one in extensions)
        for file, part in zip(files, parts.values()):
            os.replace(part, os.path.join(directory, file.name))
    finally:
        for part in parts.values():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
    return Shard(len(samples), files)


def _written(parts: dict[str, str], kind: str, samples: Sequence[tuple[int, Sample]]) -> dict[str, Writer]:
    with contextlib.ExitStack() as stack:
        files = {extension: stack.enter_context(open(path, "wb")) for extension, path in parts.items()}
        writers = {extension: Writer(file) for extension, file in files.items()}
        container = KINDS[kind](writers)
        for number, sample in samples:
            container.add(number, sample, _content(sample))
        container.end()
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    return writers


def _content(sample: Sample) -> bytes:
    content = Content(sample.path).read()
    if len(content) != sample.bytes:
        raise PackError(
            f"{sample.name} changed while it was packed", "Pack again into another directory.", code="sample-changed"
        )
    return content


def _write_manifest(directory: str, kind: str, classes: Sequence[str], shards: Sequence[Shard]) -> None:
    document = {"format": kind, "classes": list(classes), "shards": [asdict(one) for one in shards]}
    part = os.path.join(directory, f"{_PART}json")
    with open(part, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, os.path.join(directory, MANIFEST))


def _require_space(directory: str, needed: int) -> None:
    status = os.statvfs(directory)
    free = status.f_bavail * status.f_frsize
    if needed > free:
        raise PackError(
            f"{directory} has {free >> 20} MiB free, and at least {(needed >> 20) + 1} MiB are needed", code="disk-full"
        )


def verify(directory: str, show: Show) -> list[str]:
    """Return what is wrong with each file of each shard. Raises ShardError without a list of them, OSError."""
    shards = load(directory)
    wrong = [problem for shard in shards for problem in sizes_wrong(directory, shard)]
    files = [file for shard in shards if not sizes_wrong(directory, shard) for file in shard.files]
    total, read = sum(file.bytes for file in files), 0
    for file in files:
        if _sha256(directory, file) != file.sha256:
            wrong.append(f"{os.path.join(directory, file.name)} was changed: its SHA-256 is another one")
        read += file.bytes
        show(read, total)
    return wrong


def _sha256(directory: str, file: File) -> str:
    digest = hashlib.sha256()
    content = Content(os.path.join(directory, file.name))
    while block := content.read(_BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()
