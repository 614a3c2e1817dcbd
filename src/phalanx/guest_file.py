"""Reads files of a repository, whose author is not trusted with this machine: regular files, none too large.

Nor is it trusted to answer: its directory may be on a server that is away, whose readers no Ctrl-C reaches.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Result = TypeVar("Result")

_SILENT_S = 30.0


def answering(path: Path | str, call: Callable[[Callable[[str], object]], Result]) -> Result:
    """Return `call(name)`, which names each path before it reads that, and runs in another thread.

    Raises OSError if a path takes longer than 30 s; the thread is left behind. The first path is `path`.
    """
    at = [str(path)]
    results: list[Result] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call(at.append))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive():
        before = len(at)
        thread.join(_SILENT_S)
        if thread.is_alive() and len(at) == before:
            raise OSError(errno.ETIMEDOUT, f"its file system does not answer within {_SILENT_S:g} s", at[-1])
    if errors:
        raise errors[0]
    return results[0]


def read(path: Path, limit_bytes: int, within: Path | None = None) -> bytes:
    """Return the content of a regular file. Raises OSError, whose `strerror` says what is wrong with any other.

    `within`: the file must be in this directory, links resolved, and not in a `.git`, whose settings may have secrets.
    """
    return answering(path, lambda _: _read(path, limit_bytes, within))


def _read(path: Path, limit_bytes: int, within: Path | None) -> bytes:
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
