"""Reads files of a repository, whose author is not trusted with this machine: regular files, none too large."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read(path: Path, limit_bytes: int, within: Path | None = None) -> bytes:
    """Return the content of a regular file. Raises OSError, whose `strerror` says what is wrong with any other.

    `within`: the file must be in this directory, links resolved, and not in a `.git`, whose settings may have secrets.
    """
    if within is not None:
        _require_within(path, within)
    # O_NONBLOCK: opening a FIFO would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {limit_bytes >> 10} KiB", str(path))
    return content


def leads_out(path: str, directory: str) -> bool:
    """Whether a path is outside a directory, links resolved."""
    found, top = os.path.realpath(path), os.path.realpath(directory)
    return os.path.commonpath((found, top)) != top


def _require_within(path: Path, directory: Path) -> None:
    if leads_out(str(path), str(directory)):
        raise OSError(errno.EPERM, f"it leads out of {directory}", str(path))
    if ".git" in path.resolve().relative_to(directory.resolve()).parts:
        raise OSError(errno.EPERM, "it is git's own", str(path))
