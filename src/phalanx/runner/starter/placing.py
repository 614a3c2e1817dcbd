"""Puts a copy of the code where the user wants it on each node, as launch.py's --sync-dst-dir had rsync do."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Iterator, Tuple


def place_tree(source: str, target: str) -> str:
    """Copy what is new or has changed; nothing is removed. Returns what went wrong, else "".

    "{nodes}" stands in the text where the names of the nodes go.
    """
    try:
        for directory, names in _directories(source):
            there = os.path.join(target, os.path.relpath(directory, source))
            os.makedirs(there, exist_ok=True)
            for name in names:
                _place(os.path.join(directory, name), os.path.join(there, name))
    except OSError as error:
        return f"the code can't be put into {target} on {{nodes}}: {error.filename or target}: {error.strerror}"
    return ""


def _directories(source: str) -> Iterator[Tuple[str, Iterator[str]]]:
    """Each directory with its files, and with the links to directories in it."""
    for directory, directories, files in os.walk(source):
        links = [name for name in directories if os.path.islink(os.path.join(directory, name))]
        yield directory, iter([*files, *links])


def _place(source: str, target: str) -> None:
    if _is_same(source, target):
        return
    # Beside and renamed: another node may write the same file on a directory that they share.
    beside = f"{target}.{os.uname().nodename}.{os.getpid()}"
    shutil.copy2(source, beside, follow_symlinks=False)
    os.replace(beside, target)


def _is_same(source: str, target: str) -> bool:
    """Size and time of last change agree, which is rsync's quick check."""
    try:
        one, other = os.lstat(source), os.lstat(target)
    except FileNotFoundError:
        return False
    return (one.st_mode, one.st_size, one.st_mtime_ns) == (other.st_mode, other.st_size, other.st_mtime_ns)
