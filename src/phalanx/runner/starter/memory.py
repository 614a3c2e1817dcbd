"""Reads how many processes this node's kernel has killed for lack of memory, from counts that every user can read."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

# The cgroup's OOM kills of any kind (Linux, admin-guide/cgroup-v2, "memory.events"); else those of the whole machine,
# in /proc/vmstat since Linux 4.13.
_CGROUP = "/proc/self/cgroup"
_EVENTS = "/sys/fs/cgroup{}/memory.events"
_MACHINE = "/proc/vmstat"


def oom_kills() -> Optional[int]:
    """Return the number of OOM kills since some fixed time; None where no count can be read."""
    kills = _count(_EVENTS.format(_own_cgroup()))
    return _count(_MACHINE) if kills is None else kills


def _own_cgroup() -> str:
    for line in _lines(_CGROUP):
        if line.startswith("0::"):
            return line[len("0::") :].rstrip("/")
    return ""


def _count(path: str) -> Optional[int]:
    for line in _lines(path):
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.isdigit():
            return int(value)
    return None


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []
