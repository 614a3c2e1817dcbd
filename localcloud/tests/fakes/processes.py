"""Processes of this machine, as tests find them in /proc and wait for their end."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Process(NamedTuple):
    """A process. Its pid alone may be another one's a minute later: Linux has 32,768 of them by default."""

    pid: int
    started_ticks: int

    @property
    def lives(self) -> bool:
        return process(self.pid) == self


def process(pid: int) -> Process | None:
    """Return the process that has this pid now."""
    fields = _stat(PROC / str(pid))
    return Process(pid, int(fields[19])) if fields else None


def descendants(root: int) -> set[int]:
    """Return a process and all below it; nothing when it has ended."""
    parent = _parents()
    found = {root} & parent.keys()
    while grown := {pid for pid in parent if parent[pid] in found} - found:
        found |= grown
    return found


def identified(pids: Iterable[int]) -> set[Process]:
    """Return the processes that have these pids now."""
    return {found for pid in pids if (found := process(pid))}


def process_file(pid: int, name: str) -> bytes:
    """Read a process's file in /proc; return nothing when it has ended, or is another user's."""
    try:
        return (PROC / str(pid) / name).read_bytes()
    except OSError:
        return b""


def wait_until_gone(processes: Iterable[Process], timeout_s: float = 180.0) -> set[Process]:
    """Wait for processes to end; return those that are left after the timeout."""
    deadline = time.monotonic() + timeout_s
    while (left := {one for one in processes if one.lives}) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _parents() -> dict[int, int]:
    """Map each process on this machine to its parent."""
    found = {int(one.name): _stat(one) for one in PROC.glob("[0-9]*")}
    return {pid: int(fields[1]) for pid, fields in found.items() if fields}


def _stat(directory: Path) -> list[str]:
    """Return what follows a process's name in its stat; nothing when it has ended meanwhile."""
    try:
        return (directory / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
