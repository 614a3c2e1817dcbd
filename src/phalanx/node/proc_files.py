"""Reads what the kernel says of processes, without waiting for one that hangs; and of mounts.

A process that executes a program while a file of it can't be closed, because a file system does not answer, keeps
everybody waiting who reads its /proc/PID/stat, environ or maps; one that maps such a file, whoever reads its cmdline.
So threads read, and one that is kept waiting is left behind.
"""

from __future__ import annotations

import os
import threading
import time

# Each starter of a job imports this: `typing` takes a twentieth of its CPU time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Optional, Set, Tuple

# For one file, and for all files of a call.
_PATIENCE_S, _MOST_S = 0.5, 2.0
_left_behind: Dict[Tuple[int, str], threading.Thread] = {}


def read_each(pids: Iterable[int], name: str, proc: str = "/proc") -> Tuple[Dict[int, bytes], Set[int]]:
    """Return /proc/PID/name of each process that has it and lets us read it, and the pids of those that hang."""
    found: Dict[int, bytes] = {}
    hanging: Set[int] = set()
    todo = []
    for pid in pids:
        (hanging.add if _hangs(pid, name) else todo.append)(pid)
    deadline = time.monotonic() + _MOST_S
    while todo and time.monotonic() < deadline:
        reader = _Reader(todo, name, proc)
        reader.start()
        while reader.moves() and time.monotonic() < deadline:
            pass
        reader.is_given_up = True
        todo = reader.rest
        found.update(list(reader.found.items()))
        if todo:
            _left_behind[todo[0], name] = reader
            hanging.add(todo[0])
            todo = todo[1:]
    return found, hanging.union(todo) - set(found)


def _hangs(pid: int, name: str) -> bool:
    reader = _left_behind.get((pid, name))
    if reader and not reader.is_alive():
        del _left_behind[pid, name]
        return False
    return reader is not None


class _Reader(threading.Thread):
    """Reads one file after another; `rest` begins with that which it reads."""

    def __init__(self, pids: List[int], name: str, proc: str) -> None:
        super().__init__(daemon=True)
        self.rest, self._name, self._proc = pids, name, proc
        self.found: Dict[int, bytes] = {}
        self.is_given_up = False

    def run(self) -> None:
        while self.rest and not self.is_given_up:
            content = read(self.rest[0], self._name, self._proc)
            if content is not None:
                self.found[self.rest[0]] = content
            self.rest = self.rest[1:]

    def moves(self) -> bool:
        """Wait for a while; return whether it has read a file meanwhile, and has more to read."""
        before = self.rest
        self.join(_PATIENCE_S)
        return bool(self.rest) and self.rest is not before


def read(pid: int, name: str, proc: str = "/proc") -> Optional[bytes]:
    """Return /proc/PID/name, or None. Waits for as long as the process hangs, unless `name` is status or comm."""
    try:
        with open(f"{proc}/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return None


def mounts(root: str) -> List[List[str]]:
    """Return the fields of each mount in /proc/self/mountinfo; none if that does not exist.

    A mount's name may contain what Python takes for the end of a line, or for a space.
    """
    try:
        with open(f"{root}/proc/self/mountinfo", "rb") as table:
            return [os.fsdecode(line).rstrip("\n").split(" ") for line in table]
    except FileNotFoundError:
        return []
