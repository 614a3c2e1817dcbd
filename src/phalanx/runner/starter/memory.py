"""How many processes this node's kernel has killed for lack of memory: its own count, which every user can read."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

# Of the cgroup, any kind of OOM kill (Linux, admin-guide/cgroup-v2, "memory.events"); else of the whole machine, as
# /proc/vmstat has it since Linux 4.13.
_CGROUP = "/proc/self/cgroup"
_EVENTS = "/sys/fs/cgroup{}/memory.events"
_MACHINE = "/proc/vmstat"


def oom_kills() -> Optional[int]:
    """So many by now, counted from any moment on; None where no count can be read."""
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
