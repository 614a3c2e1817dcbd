"""Copies a prefix of a bucket into a directory, in pieces that several processes fetch.

A file appears under its name when it is complete and its checksum is right, with the object's time. So a copy that
was interrupted goes on: a file with its object's size and time is not fetched again, nor is a range of a large one
that is on disk already. `.phalanx-*` files are those of copies in progress.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Callable, Iterator, List, Mapping, Set

from phalanx.objects import checksums, keys_as_files
from phalanx.objects.s3_client import Answer, Bucket, Client, Object
from phalanx.objects.workers import Keys, Spread, spread

PIECE_BYTES = 8 << 20
_RANGES = ".ranges"
_DAMAGED = "{} arrived with a wrong checksum; the same command fetches it again"


class CopyError(Exception):
    """The copy can't be made. What is complete stays."""


@dataclass(frozen=True)
class Progress:
    """How much of a copy is done; `unchanged`: how many objects were there before it."""

    objects: int
    total_objects: int
    bytes: int
    total_bytes: int
    unchanged: int = 0


Show = Callable[[Progress], None]


@dataclass(frozen=True)
class Piece:
    """An object or a range of it, and the path of its file."""

    item: Object
    path: str
    offset: int
    length: int


def download(bucket: Bucket, prefix: str, directory: str, keys: Keys, show: Show) -> Progress:
    """Copy all objects below `prefix`, or the one of this key, into `directory`.

    A prefix is "" or ends with "/". Raises CopyError, S3Error, NamesError, OSError.
    """
    found = list_objects(bucket, prefix, keys)
    folder = prefix[: prefix.rfind("/") + 1]
    keys_as_files.require_files(one.key[len(folder) :] for one in found)
    return fetch(bucket, {one: os.path.join(directory, one.key[len(folder) :]) for one in found}, directory, keys, show)


def fetch(
    bucket: Bucket, paths: Mapping[Object, str], directory: str, keys: Keys, show: Show, spread: Spread = spread
) -> Progress:
    """Copy each object to its path in `directory`. Raises CopyError, S3Error, OSError."""
    missing = {one: path for one, path in paths.items() if not _is_there(one, path)}
    _remove_older_parts(missing)
    ranges = [piece for one, path in missing.items() if _is_large(one) for piece in _ranges_left(one, path)]
    files = [Piece(one, path, 0, one.size) for one, path in missing.items()]
    left = sum(piece.length for piece in ranges) + sum(one.length for one in files if not _is_large(one.item))
    _require_space(directory, left)
    total = Progress(len(paths), len(paths), sum(one.size for one in paths), sum(one.size for one in paths))
    objects, copied = total.objects - len(files), total.bytes - left
    # First the large files' ranges, so that one is checked while others arrive.
    for piece in spread(_fetch_range, bucket, ranges, keys, _length):
        copied += piece.length
        show(Progress(objects, total.objects, copied, total.bytes))
    for file in spread(_complete, bucket, sorted(files, key=_length, reverse=True), keys, _length):
        objects, copied = objects + 1, copied + (0 if _is_large(file.item) else file.length)
        show(Progress(objects, total.objects, copied, total.bytes))
    return replace(total, unchanged=len(paths) - len(missing))


def _length(piece: Piece) -> int:
    return piece.length


def list_objects(bucket: Bucket, prefix: str, keys: Keys) -> List[Object]:
    """Return the objects to copy, without empty ones that stand for directories. Raises CopyError if there are none."""
    is_folder = prefix[-1:] in ("", "/")
    with closing(Client(bucket, keys)) as client:
        below = list(client.objects(prefix))
    files = [one for one in below if one.size or not keys_as_files.is_marker(one.key)]
    found = [one for one in files if is_folder or one.key == prefix]
    if not found:
        raise CopyError(f"there is nothing at s3://{bucket.name}/{prefix}")
    return found


def _is_there(item: Object, path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return (status.st_size, int(status.st_mtime)) == (item.size, item.modified_s)


def _is_large(item: Object) -> bool:
    return item.size > PIECE_BYTES


def _ranges_left(item: Object, path: str) -> Iterator[Piece]:
    """Yield the ranges of a large object that no earlier copy has fetched."""
    there = _ranges_there(item, path)
    for offset in range(0, item.size, PIECE_BYTES):
        if offset not in there:
            yield Piece(item, path, offset, min(PIECE_BYTES, item.size - offset))


def _require_space(directory: str, needed: int) -> None:
    os.makedirs(directory, exist_ok=True)
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise CopyError(f"{directory} has {size_text(free)} free, and {size_text(needed)} are needed")


def size_text(count: float) -> str:
    """Format a number of bytes: 12 bytes, 3.4 MiB."""
    for unit, unit_bytes in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= unit_bytes:
            return f"{count / unit_bytes:.1f} {unit}"
    return "1 byte" if count == 1 else f"{count:.0f} bytes"


def _fetch_range(client: Client, piece: Piece) -> None:
    """Write a range of a large object into its file in progress."""
    content = _read(client, piece).body
    os.makedirs(os.path.dirname(piece.path), exist_ok=True)
    part = _part(piece.item, piece.path)
    _write(part, piece.offset, content)
    with open(_ranges(part), "a", encoding="ascii") as ranges:
        ranges.write(f"{piece.offset}\n")


def _complete(client: Client, file: Piece) -> None:
    """Bring a file under its name: fetch it if it is small, else check the file in progress."""
    (_finish if _is_large(file.item) else _fetch)(client, file)


def _fetch(client: Client, file: Piece) -> None:
    answer = _read(client, file)
    if not checksums.is_right(client, file.item, answer.headers, io.BytesIO(answer.body)):
        raise CopyError(_DAMAGED.format(file.item.key))
    os.makedirs(os.path.dirname(file.path), exist_ok=True)
    part = _part(file.item, file.path)
    with open(part, "wb") as out:
        out.write(answer.body)
    _place(file.item, part, file.path)


def _read(client: Client, piece: Piece) -> Answer:
    item, is_whole = piece.item, piece.length == piece.item.size
    answer = client.read(item.key, item.etag, piece.offset, None if is_whole else piece.length)
    if len(answer.body) != piece.length:
        raise CopyError(f"{item.key}: {len(answer.body)} bytes arrived instead of {piece.length}")
    return answer


def _finish(client: Client, piece: Piece) -> None:
    """Check a large file, all of whose ranges are there, and move it into place."""
    item, part = piece.item, _part(piece.item, piece.path)
    with open(part, "rb") as file:
        is_right = checksums.is_right(client, item, client.head(item.key), file)
    os.unlink(_ranges(part))
    if not is_right:
        os.unlink(part)
        raise CopyError(_DAMAGED.format(item.key))
    _place(item, part, piece.path)


def _part(item: Object, path: str) -> str:
    """Return the file of a copy in progress, which belongs to this content of the object."""
    tags = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16] for text in (item.key, item.etag)]
    return os.path.join(os.path.dirname(path), f".phalanx-{tags[0]}-{tags[1]}")


def _ranges(part: str) -> str:
    return f"{part}{_RANGES}"


def _remove_older_parts(missing: Mapping[Object, str]) -> None:
    """Remove what copies that were cut off had fetched of these objects before their content changed."""
    parts = {_part(one, path) for one, path in missing.items()}
    objects = {part.rpartition("-")[0] for part in parts}
    for directory in {os.path.dirname(part) for part in parts}:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
            for entry in entries:
                part = entry.path[: -len(_RANGES)] if entry.path.endswith(_RANGES) else entry.path
                if part not in parts and part.rpartition("-")[0] in objects:
                    os.unlink(entry.path)


def _ranges_there(item: Object, path: str) -> Set[int]:
    """Return the offsets of the ranges that an earlier copy wrote. A line that was cut off does not count."""
    part = _part(item, path)
    try:
        with open(_ranges(part), encoding="ascii") as file:
            lines = {int(line) for line in file if line.endswith("\n")}
        return lines if os.path.exists(part) else set()
    except (OSError, ValueError):
        return set()


def _write(path: str, offset: int, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    with open(descriptor, "wb", buffering=0) as file:
        file.seek(offset)
        view = memoryview(content)
        while view:
            view = view[file.write(view) or 0 :]


def _place(item: Object, part: str, path: str) -> None:
    os.utime(part, (item.modified_s, item.modified_s))
    os.replace(part, path)
