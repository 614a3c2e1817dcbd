"""What a disk may contain after a power failure: from the calls that changed files, and those that synced them."""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# More of the latest changes would take too long: each doubles the number of worlds.
_VARIED = 6
World = dict[str, "bytes | None"]


def worlds(calls: list[tuple[Any, ...]]) -> Iterator[World]:
    """Yield what a disk may contain if the power fails after these calls: names with contents, None for a directory.

    What was synced is present. Of later changes to names, any subset may be; of later writes, nothing, half or all.
    """
    kept, pending = names(calls)
    # If nothing is synced, only the latest changes are varied, because each doubles the number of worlds.
    kept, pending = kept + pending[:-_VARIED], pending[-_VARIED:]
    for chosen in itertools.product((False, True), repeat=len(pending)):
        done = [*kept, *(call for call, is_kept in zip(pending, chosen, strict=True) if is_kept)]
        for share in (0.0, 0.5, 1.0):
            yield applied(done, contents(calls, share))


def names(calls: list[tuple[Any, ...]]) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Split the changes to names into those that are on the disk for certain, and those that may not be."""
    kept: list[tuple[Any, ...]] = []
    pending: list[tuple[Any, ...]] = []
    for call in calls:
        if call[0] == "sync names":
            kept += [one for one in pending if _parent(one) == call[1]]
            pending = [one for one in pending if _parent(one) != call[1]]
        elif call[0] in ("name", "rename", "unlink"):
            pending.append(call)
    return kept, pending


def _parent(call: tuple[Any, ...]) -> str:
    return str(Path(call[1]).parent)


def contents(calls: list[tuple[Any, ...]], share: float) -> dict[int, bytes]:
    written: dict[int, bytes] = {}
    synced: dict[int, int] = {}
    for call in calls:
        if call[0] == "write":
            written[call[1]] = written.get(call[1], b"") + call[2]
        elif call[0] == "sync":
            synced[call[1]] = len(written.get(call[1], b""))
    return {one: data[: max(synced.get(one, 0), int(len(data) * share))] for one, data in written.items()}


def applied(calls: list[tuple[Any, ...]], files: dict[int, bytes]) -> World:
    world: World = {}
    for call in calls:
        if call[0] == "name":
            world[call[1]] = None if call[2] is None else files.get(call[2], b"")
        elif call[0] == "unlink":
            world.pop(call[1], None)
        elif call[1] in world:
            world[call[2]] = world.pop(call[1])
    return world


@dataclass
class Record:
    """The calls with which a program changes the files below a directory, as `worlds` takes them.

    A file's content counts as written, and its name as given, when the file is renamed, linked or synced.
    """

    root: Path
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)
    _lengths: dict[int, int] = field(default_factory=dict)

    def has(self, path: Path) -> None:
        """Begin with a file that is on the disk already."""
        self._look(str(path))
        self.calls += [("sync", self._numbers[str(path)]), ("sync names", str(path.parent))]

    def event(self, name: str, args: tuple[Any, ...]) -> None:
        """Take an audit event, which comes before its call."""
        paths = [os.fspath(one) for one in args[:2] if isinstance(one, (str, os.PathLike))]
        if not paths or not all(one.startswith(f"{self.root}/") for one in paths):
            return
        if name == "os.rename":
            self._look(paths[0])
            self._numbers[paths[1]] = self._numbers.pop(paths[0])
            self.calls.append(("rename", *paths))
        elif name == "os.link":
            self._look(paths[0])
            self._numbers[paths[1]] = self._numbers[paths[0]]
            self.calls.append(("name", paths[1], self._numbers[paths[1]]))
        elif name == "os.remove":
            self._numbers.pop(paths[0], None)
            self.calls.append(("unlink", paths[0]))
        elif name == "os.mkdir" and not Path(paths[0]).exists():
            self.calls.append(("name", paths[0], None))

    def synced(self, fd: int) -> None:
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        if f"{path}/".startswith(f"{self.root}/"):
            if Path(path).is_dir():
                self.calls.append(("sync names", path))
            else:
                self._look(path)
                self.calls.append(("sync", self._numbers[path]))

    def _look(self, path: str) -> None:
        if path not in self._numbers:
            self._numbers[path] = len(self._lengths)
            self._lengths[self._numbers[path]] = 0
            self.calls.append(("name", path, self._numbers[path]))
        number, content = self._numbers[path], Path(path).read_bytes()
        if len(content) > self._lengths[number]:
            self.calls.append(("write", number, content[self._lengths[number] :]))
            self._lengths[number] = len(content)


_recording: list[Record] = []


@functools.cache
def _listen() -> None:
    """Add the hook, which can't be removed, once."""
    sys.addaudithook(lambda name, args: [one.event(name, args) for one in _recording] and None)


@contextmanager
def recorded(root: Path, replace_fsync: Callable[[Callable[[int], None]], object]) -> Iterator[Record]:
    """Record what happens below `root`; `replace_fsync` puts a function in the place of os.fsync."""
    _listen()
    record = Record(root)
    replace_fsync(record.synced)
    _recording.append(record)
    try:
        yield record
    finally:
        _recording.remove(record)
