"""Directories that a job may have nested deeper than Python's calls: to walk through, and to remove.

In many versions of Python, `shutil.rmtree`, `os.walk` and `os.fwalk` fail there with RecursionError. The local cloud
does not know the libraries of those that use it.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_OWNERS = 0o700
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def walk(top: int, longest: int = sys.maxsize) -> Iterator[tuple[str, int, list[str]]]:
    """Yield each directory from an open one on: its path, itself, and the names in it that are no directories.

    No link is followed. What can't be opened or left again is passed over, and what has a path of more than `longest`
    bytes. A directory is open until the next one. Raises OSError if another process moves one meanwhile.
    """
    place = _Place(os.dup(top))
    try:
        names, below = _listed(place.fd)
        left = [below]
        yield ".", place.fd, names
        while left:
            if not left[-1]:
                left.pop()
                if left:
                    place.up()
            elif len(os.fsencode(path := place.path_of(name := left[-1].pop()))) <= longest and place.down(name):
                names, below = _listed(place.fd)
                left.append(below)
                yield path, place.fd, names
    finally:
        os.close(place.fd)


def remove(top: Path) -> bool:
    """Remove a directory with all that is in it, following no link; return whether it is gone.

    What can't be removed stays, and the rest goes.
    """
    with suppress(OSError):
        place = _Place(_opened(top), unlocks=True)
        try:
            _unlock(place.fd)
            _empty(place)
        finally:
            os.close(place.fd)
        top.rmdir()
    return not os.path.lexists(top)


class _Place:
    """An open directory that moves down and up: only two are open at a time, and no path gets too long.

    If it `unlocks`, it changes the modes of directories to what removing needs.
    """

    def __init__(self, fd: int, unlocks: bool = False) -> None:
        self.fd = fd
        self._unlocks = unlocks
        self._above: list[tuple[str, tuple[int, int]]] = []

    def path_of(self, name: str) -> str:
        """Return the path of what is in this directory."""
        return "/".join([*(above for above, _ in self._above), name])

    def down(self, name: str) -> bool:
        """Enter a directory that can be left again; return whether that was possible."""
        try:
            below = _opened(name, self.fd) if self._unlocks else os.open(name, _DIRECTORY, dir_fd=self.fd)
        except OSError:
            return False
        if self._unlocks:
            _unlock(below)
        if not _leads_up(below):
            os.close(below)
            return False
        self._above.append((name, self._identity()))
        self._move(below)
        return True

    def up(self) -> str:
        """Go back to the directory above; return the name of the one that was left. Raises OSError."""
        name, identity = self._above.pop()
        self._move(os.open("..", _DIRECTORY, dir_fd=self.fd))
        if self._identity() != identity:
            raise OSError(errno.ESTALE, "another process has moved the directory", name)
        return name

    def _move(self, fd: int) -> None:
        os.close(self.fd)
        self.fd = fd

    def _identity(self) -> tuple[int, int]:
        status = os.fstat(self.fd)
        return status.st_dev, status.st_ino


def _empty(place: _Place) -> None:
    """Remove all below. Raises OSError if another process moves a directory meanwhile."""
    left = [_unlink_in(place.fd)]
    while left:
        if left[-1]:
            if place.down(left[-1].pop()):
                left.append(_unlink_in(place.fd))
            continue
        left.pop()
        if left:
            name = place.up()
            with suppress(OSError):
                os.rmdir(name, dir_fd=place.fd)


def _unlink_in(directory: int) -> list[str]:
    """Remove what is no directory, and return the names of the directories."""
    names, below = _listed(directory)
    for name in names:
        with suppress(OSError):
            os.unlink(name, dir_fd=directory)
    return below


def _opened(name: str | Path, directory: int | None = None) -> int:
    """Open a directory, also one that its owner may not read. Raises OSError."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=directory)
    except PermissionError:
        found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        # The kernel's link to what is open: no other link is followed.
        Path(f"/proc/self/fd/{found}").chmod(_OWNERS)
        return os.open(".", _DIRECTORY, dir_fd=found)
    finally:
        os.close(found)


def _unlock(directory: int) -> None:
    """Give back what removing and the way up need and the owner took away."""
    if os.fstat(directory).st_mode & _OWNERS != _OWNERS:
        with suppress(OSError):  # another user's
            os.fchmod(directory, _OWNERS)


def _leads_up(directory: int) -> bool:
    """Return whether names can be looked up in a directory, by the rights that this process has now."""
    try:
        os.stat("..", dir_fd=directory)
    except OSError:
        return False
    return True


def _listed(directory: int) -> tuple[list[str], list[str]]:
    """Return the names of what is no directory, and of the directories."""
    names: list[str] = []
    below: list[str] = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            (below if entry.is_dir(follow_symlinks=False) else names).append(entry.name)
    return names, below
