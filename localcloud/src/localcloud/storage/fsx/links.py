"""Import a linked prefix's objects as files, and export files that jobs write: what FSx does on its own.

Jobs may change the directories meanwhile, so that no step here follows a link of theirs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Iterator
from typing import Any

from moto.s3.models import s3_backends

from localcloud.api import partitions
from localcloud.storage import trees
from localcloud.storage.fsx.records import Link

LARGEST_BYTES = 256 << 20
"""S3 is in memory here: larger files are not exported."""
# S3 has no longer ones.
_LONGEST_KEY = 1024
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
log = logging.getLogger(__name__)


def sync(root: str, link: Link, account: str, owner: int, first: bool = False) -> None:
    """Import what is new in S3 and export what is new here, as far as the link's policies say; all of S3 at first."""
    backend = s3_backends[account][partitions.played()]
    with _below(root, link.path.split("/"), owner, link.modes[1]) as directory:
        _import(backend, link, directory, owner, frozenset({"NEW"}) if first else link.imports)
        if link.exports:
            _export(backend, link, directory)


def _import(backend: Any, link: Link, directory: int, owner: int, events: frozenset[str]) -> None:
    bucket = backend.buckets.get(link.bucket)
    keys = list(bucket.keys.items()) if bucket else []
    now = {key[len(link.prefix) :]: found for key, found in keys if key.startswith(link.prefix) and key != link.prefix}
    for name, found in now.items():
        before = link.seen_objects.get(name)
        if before != found.etag and ("NEW" if before is None else "CHANGED") in events:
            with _passing(name):
                _write(directory, name, found.value, owner, link.modes)
                _note(link, directory, name)
        link.seen_objects[name] = found.etag
    for name in [one for one in link.seen_objects if one not in now]:
        del link.seen_objects[name]
        if "DELETED" in events:
            with _passing(name), _below_of(directory, _parts(name)[:-1]) as parent:
                os.unlink(_parts(name)[-1], dir_fd=parent)
            link.seen_files.pop(name, None)


def _export(backend: Any, link: Link, directory: int) -> None:
    there = dict(_files(directory))
    for name, found in there.items():
        before = link.seen_files.get(name)
        if before != found and ("NEW" if before is None else "CHANGED") in link.exports:
            with _passing(name), _below_of(directory, _parts(name)[:-1]) as parent:
                stored = backend.put_object(link.bucket, link.prefix + name, _read(parent, _parts(name)[-1]))
                link.seen_objects[name] = stored.etag
        link.seen_files[name] = found
    for name in [one for one in link.seen_files if one not in there]:
        del link.seen_files[name]
        if "DELETED" in link.exports and link.seen_objects.pop(name, None):
            backend.delete_object(link.bucket, link.prefix + name)


def _files(directory: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the regular files below a directory, each with its time and size."""
    for where, here, names in trees.walk(directory, _LONGEST_KEY):
        for name in names:
            with _passing(name):
                found = os.stat(name, dir_fd=here, follow_symlinks=False)
                path = os.path.normpath(f"{where}/{name}")
                if stat.S_ISREG(found.st_mode) and found.st_size <= LARGEST_BYTES and _can_be_key(path):
                    yield path, (found.st_mtime_ns, found.st_size)


def _can_be_key(path: str) -> bool:
    try:
        return len(path.encode()) <= _LONGEST_KEY
    except UnicodeEncodeError:
        return False


def _note(link: Link, directory: int, name: str) -> None:
    """Remember a file as it was imported, so that it is not exported."""
    if not name.endswith("/"):
        with _below_of(directory, _parts(name)[:-1]) as parent:
            found = os.stat(_parts(name)[-1], dir_fd=parent, follow_symlinks=False)
            link.seen_files[name] = (found.st_mtime_ns, found.st_size)


def _write(directory: int, name: str, content: bytes, owner: int, modes: tuple[int, int]) -> None:
    """Write a file, or make the directory that an object with a slash at its end stands for."""
    *above, last = _parts(name)
    with _below_of(directory, [*above, last] if name.endswith("/") else above, owner, modes[1]) as parent:
        if name.endswith("/"):
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(last, dir_fd=parent)
        with os.fdopen(os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o755, dir_fd=parent), "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), modes[0])
            os.fchown(file.fileno(), owner, owner)


def _read(parent: int, name: str) -> bytes:
    with os.fdopen(os.open(name, os.O_RDONLY | _OPEN, dir_fd=parent), "rb") as file:
        return file.read(LARGEST_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""


def _parts(name: str) -> list[str]:
    """Return a name's parts. Raises OSError for one that can't be a file's."""
    parts = name.rstrip("/").split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise OSError(f"{name!r} can't be a file")
    return parts


@contextlib.contextmanager
def _below(root: str, parts: list[str], owner: int, mode: int) -> Iterator[int]:
    top = os.open(root, _DIRECTORY)
    try:
        with _below_of(top, parts, owner, mode) as found:
            yield found
    finally:
        os.close(top)


@contextlib.contextmanager
def _below_of(directory: int, parts: list[str], owner: int | None = None, mode: int = 0o755) -> Iterator[int]:
    """Open a directory below another; with `owner`, make what is missing."""
    here = os.dup(directory)
    try:
        for part in parts:
            is_new = owner is not None and _make(part, here, owner)
            below = os.open(part, _DIRECTORY, dir_fd=here)
            if is_new:
                os.fchmod(below, mode)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def _make(name: str, parent: int, owner: int) -> bool:
    """Make a directory; return whether it was missing."""
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        return False
    os.chown(name, owner, owner, dir_fd=parent, follow_symlinks=False)
    return True


@contextlib.contextmanager
def _passing(name: str) -> Iterator[None]:
    """Skip what can't be done with one file: FSx reports such files to CloudWatch, and goes on."""
    try:
        yield
    except OSError as error:
        log.warning("%s is not synchronized: %s", name, error)
