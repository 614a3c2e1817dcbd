"""What arrives of a copy: where it may be written, how much may come, and what name a file has until it is whole."""

from __future__ import annotations

import os
import stat
import tarfile
from contextlib import suppress
from typing import Any, Callable, List, Set

from phalanx.runner.files import begun, unchanged

TOP = "top"
_LONGEST_SHOWN = 300

Progress = Callable[[int], None]


class CarryError(Exception):
    """Something can't be copied; the message gives the reason."""


class Places:
    """Decides where members are written: into directories that came before them, and so never through a link."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._directories: Set[str] = set()

    def of(self, member: tarfile.TarInfo) -> str:
        """Return a member's place. The sender chose the name, so it may be anything. Raises CarryError."""
        parent, _, last = member.name.rpartition("/")
        is_known = parent in self._directories and last not in ("", ".", "..")
        if member.name != TOP and not is_known:
            raise CarryError(f"refused a file named {shown(member.name)}")
        return self._target + member.name[len(TOP) :]

    def make_directory(self, member: tarfile.TarInfo) -> None:
        place = self.of(member)
        if os.path.islink(place):
            raise CarryError(f"{shown(place)} is a symbolic link; nothing is written through it")
        if not os.path.isdir(place):
            os.mkdir(place)
        else:
            unchanged.remove_older_parts(place)
        self._directories.add(member.name)


class Arrived:
    """Checks what arrives against what the header announced."""

    def __init__(self, items: int, count: int, progress: Progress) -> None:
        self._items_left, self._bytes_left = items, count
        self._items, self._bytes = items, count
        self._written = 0
        self._progress = progress
        self.unread: List[str] = []
        self.torn: List[str] = []
        self._has_ended = False

    @property
    def progress(self) -> str:
        return f"{self._items - self._items_left} of {self._items} files"

    def begin(self, member: tarfile.TarInfo) -> None:
        """Count a member. Raises CarryError for more members or bytes than were announced."""
        self._items_left -= 1
        self._bytes_left -= member.size
        if self._items_left < 0 or self._bytes_left < 0:
            raise CarryError(f"more arrived than was announced, {self._items} files of {self._bytes} bytes")

    def leave_out(self, names: List[str]) -> None:
        """Note what does not come. Raises CarryError for more than is missing, or a second list."""
        if self._has_ended or len(names) > self._items_left:
            raise CarryError("more is said to be missing than was announced")
        self._has_ended = True
        self._items_left -= len(names)
        self.unread = names

    def add(self, count: int) -> None:
        self._written += count
        self._progress(self._written)

    def end(self) -> None:
        """Raise CarryError when something is missing."""
        if self._items_left or not self._has_ended:
            raise CarryError(f"the stream ended after {self.progress}")


class Part:
    """The last file or link, which gets its name once the next member does not say that it is torn."""

    def __init__(self) -> None:
        self.place = self._path = self._kind = ""

    def begin(self, place: str, known: unchanged.Known, kind: str) -> str:
        """Return the name that it has at first. Raises CarryError if it can't replace what is at its place.

        It is there already if, by its `kind`, the rest of a beginning comes. A beginning of another file goes.
        """
        if os.path.isdir(place) and not os.path.islink(place):
            raise CarryError(f"{shown(place)} is a directory; the file of that name can't replace it")
        self.place, self._kind = place, kind
        self._path = os.path.join(os.path.dirname(place), unchanged.part_name())
        had = known.at(place)
        if had is not None and kind == f"{begun.FROM}{had.bytes}":
            os.rename(had.path, self._path)
        elif had is not None:
            os.unlink(had.path)
        return self._path

    def keep(self) -> None:
        if self.place:
            os.replace(self._path, self.place)
            self.place = ""

    def leave(self) -> str:
        """Keep a large part for the next copy, and return what to add to a message."""
        with suppress(OSError):
            status = os.lstat(self._path) if self.place else None
            is_whole = self._kind == "" or self._kind.startswith(begun.FROM)
            if status and is_whole and stat.S_ISREG(status.st_mode) and status.st_size >= begun.LEAST_BYTES:
                os.replace(self._path, begun.resting_place(self.place))
                self.place = ""
                return f"; {status.st_size} bytes of a file stay for the next copy"
        return ""

    def remove(self) -> None:
        if self.place and os.path.lexists(self._path):
            os.unlink(self._path)
        self.place = ""


def shown(path: Any) -> str:
    """Return a path for a message; of a very long one, only the end."""
    text = repr(path)
    return text if len(text) <= _LONGEST_SHOWN else f"…{text[-_LONGEST_SHOWN:]}"
