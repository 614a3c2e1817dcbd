"""Says what a silent rank does, from what the kernel counts for it and its children: it computes, reads, or waits."""

from __future__ import annotations

import os
import time

from phalanx.counts import first_of
from phalanx.node import proc_files
from phalanx.runner.names import STATES
from phalanx.runner.reaper import add_descendants, children_of, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, List, Tuple

# A process that uses this part of one core computes, and one that reads so much a second reads.
_BUSY = 0.3
_READS_BYTES_S = 1 << 20
_MOST_PACKAGES = 4
_PACKAGES = "/site-packages/"
_LONGEST_NAME = 40
_STUCK = ("D", "T", "t")


class Doing:
    """Looks at one process again and again; each time it says what was done since the time before."""

    def __init__(self) -> None:
        self._last: Tuple[int, float, float, int] = (0, 0.0, 0.0, 0)  # pid, time since boot, CPU time, bytes

    def of(self, pid: int) -> str:
        """Return what a process and its children do, and have done since its start, in words; "" if it has ended."""
        table = processes()
        if not table.get(pid, {}).get("start"):
            return ""
        family = {pid}
        add_descendants(family, children_of(table))
        tick = os.sysconf("SC_CLK_TCK")
        used = {
            one: (int(table[one]["ticks"]) + int(table[one]["reaped"])) / tick for one in family if table[one]["start"]
        }
        # The one that does the work, at first by its memory: a shell that runs a script only waits for it.
        worker = max(used, key=lambda one: (used[one], int(table[one]["pages"])))
        began_s = int(table[pid]["start"]) / tick
        before = self._last if self._last[0] == pid else (pid, began_s, 0.0, 0)
        now = (pid, time.clock_gettime(time.CLOCK_BOOTTIME), sum(used.values()), _read_bytes(family))
        self._last = now
        passed_s = max(0.1, now[1] - before[1])
        does = _does((now[2] - before[2]) / passed_s, (now[3] - before[3]) / passed_s, table[worker]["state"])
        facts = [f"{now[2]:.1f} s of CPU", f"{now[3] / (1 << 20):.0f} MiB read", *_loaded(worker)]
        return f"({_plain(table[worker]['name'])}) {does}: so far {', '.join(facts)}"


def _does(cores: float, bytes_s: float, state: str) -> str:
    if state in _STUCK:
        return STATES[state]
    if cores >= _BUSY or state == "R":
        return "computes"
    return "reads files" if bytes_s >= _READS_BYTES_S else "waits"


def _read_bytes(pids: Iterable[int]) -> int:
    """Return how much these processes have read, from caches, too."""
    texts, _ = proc_files.read_each(pids, "io")
    counts = (text.split(b"\n", 1)[0].rpartition(b": ")[2] for text in texts.values())
    return sum(int(count) for count in counts if count.isdigit())


def _loaded(pid: int) -> List[str]:
    """Return the Python packages whose libraries are in the process's memory: those that have been imported so far."""
    texts, _ = proc_files.read_each([pid], "maps")
    lines = texts.get(pid, b"").decode(errors="replace").splitlines()
    places = (line.partition(_PACKAGES)[2].split("/")[0].split(".")[0] for line in lines if ".so" in line)
    names = {_plain(place[:_LONGEST_NAME]) for place in places if place}
    if not names:
        return []
    return [f"loaded {first_of(sorted(names), most=_MOST_PACKAGES)}"]


def _plain(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name)
