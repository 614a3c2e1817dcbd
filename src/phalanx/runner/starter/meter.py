"""Measures the load of this node and of the job's processes on it, from what every user can read in /proc."""

from __future__ import annotations

import math
import os
import time

from phalanx.node.proc_files import read_each
from phalanx.runner.load import Load
from phalanx.runner.loop import READ_BYTES, Loop
from phalanx.runner.reaper import add_descendants, children_of, kill_group, processes
from phalanx.runner.starter.check import which
from phalanx.runner.system import process_stats, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Mapping, Optional, Set

# A look at all processes costs more than a look at known ones.
_SEARCH_EVERY_S = 10.0
_SECTOR_BYTES = 512
_LONGEST_LINE = 4096
_SILENT_S = 10.0
_MIB = 1 << 20
_QUERY = (
    *("index", "utilization.gpu", "memory.used", "memory.total", "temperature.gpu", "power.draw"),
    *("ecc.errors.uncorrected.volatile.total", "clocks_throttle_reasons.active"),
)
# HW slowdown, SW and HW thermal slowdown, HW power brake (nvml.h, nvmlClocksThrottleReasons).
_SLOWED = 0x08 | 0x20 | 0x40 | 0x80


class Meter:
    """Measures what the descendants of `root` and the whole node do, from one call of `measure` to the next."""

    def __init__(self, loop: Loop, root: int, proc: str = "/proc") -> None:
        self._root, self._proc = root, proc
        self._tick, self._page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        self._known: Set[int] = set()
        self._searched_at = 0.0
        self._ticks: Dict[int, int] = {}  # pid → CPU time so far
        self._totals: Dict[str, float] = {}  # what only grows, of the node
        self._at = 0.0
        self.gpus = Gpus(loop)

    def measure(self) -> Optional[Load]:
        """Return the load since the last call; None at the first."""
        now = time.monotonic()
        ticks, totals = self._job_ticks(now), _totals(self._proc)
        if not self._at:
            self._at, self._ticks, self._totals = now, ticks, totals
            return None
        past_s = max(now - self._at, 0.001)
        # Of one that was not known, nobody knows since when; and the pid may be another process's by now.
        spent = sum(max(0, count - self._ticks.get(pid, count)) for pid, count in ticks.items())
        rates = {name: max(0.0, (value - self._totals.get(name, value)) / past_s) for name, value in totals.items()}
        self._at, self._ticks, self._totals = now, ticks, totals
        own = {"cores": spent / self._tick / past_s, "memory": self._memory(), "processes": float(len(ticks))}
        rates["node_cores"] /= self._tick
        return Load(**own, **rates, **_sizes(self._proc), **self.gpus.figures())

    def end(self) -> None:
        """End what was started to measure."""
        self.gpus.end()

    def _job_ticks(self, now: float) -> Dict[int, int]:
        if now > self._searched_at + _SEARCH_EVERY_S or not self._known:
            self._searched_at = now
            table = processes()
            ours = {self._root}
            add_descendants(ours, children_of(table))
            self._known = ours - {self._root, self.gpus.pid}
        else:
            table = process_stats(self._known)
        # One that hangs has no time.
        return {pid: int(table[pid]["ticks"]) for pid in self._known if "ticks" in table.get(pid, ())}

    def _memory(self) -> float:
        """Return the memory of the job's processes that they do not share with others, in bytes."""
        sizes, _ = read_each(self._known, "statm")
        fields = (text.split() for text in sizes.values())
        return float(sum(int(one[1]) - int(one[2]) for one in fields if len(one) > 2) * self._page)


class Gpus:
    """What one long-lived nvidia-smi reports, where it is; one that is missing, hangs or fails stops nothing."""

    def __init__(self, loop: Loop) -> None:
        self.pid = 0
        self._loop = loop
        self._fd = -1
        self._rest = b""
        self._at = time.monotonic()
        self._of: Dict[int, List[float]] = {}  # GPU → its figures, in the order of _QUERY
        program = which("nvidia-smi", "/", os.environ.get("PATH", os.defpath))
        if program:
            self._start(program)

    def _start(self, program: str) -> None:
        self._fd, out = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        argv = (program, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits", "-lms", "2000")
        self.pid = spawn(argv, os.environ, (null, out, null), die_with_parent=True)
        os.close(out)
        os.close(null)
        self._loop.watch(self._fd, self._read)

    def figures(self) -> Mapping[str, float]:
        """Return the fields of a Load about GPUs."""
        if not self.pid:
            return {}
        if not self._of or time.monotonic() > self._at + _SILENT_S:
            return {"gpus": -1.0}
        # A copy first: the loop may add a GPU meanwhile.
        columns = zip(*list(self._of.values()))  # noqa: B905 - Python 3.9 has no `strict`
        _, busy, used, total, hottest, watts, errors, reasons = columns
        return {
            "gpus": float(len(busy)),
            "gpu_busy": sum(busy) / len(busy),
            "gpu_memory": sum(used) * _MIB,
            "gpu_memory_total": sum(total) * _MIB,
            "gpu_hottest": max(hottest),
            "gpu_watts": sum(watts),
            "gpu_errors": sum(errors),
            "gpu_slowed": float(sum(bool(int(one) & _SLOWED) for one in reasons)),
        }

    def end(self) -> None:
        """End nvidia-smi; one that hangs in the driver is left to the proof of the job's end, which names it."""
        if self._fd >= 0:  # otherwise its pid may be another's
            kill_group(self.pid)
            self._forget()

    def _read(self, fd: int) -> None:
        data = os.read(fd, READ_BYTES)
        if not data or len(self._rest) > _LONGEST_LINE:
            self._forget()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            figures = _parsed(line)
            if figures:
                self._of[int(figures[0])] = figures
                self._at = time.monotonic()

    def _forget(self) -> None:
        """Take no more from it. Its last figures grow old, and then it counts as silent."""
        if self._fd >= 0:
            self._loop.forget(self._fd)
            os.close(self._fd)
            self._fd = -1


def _parsed(line: bytes) -> List[float]:
    """Return a GPU's figures, 0 for one that it does not have ("[N/A]"); nothing for another line."""
    words = [word.strip() for word in line.decode(errors="replace").split(",")]
    if len(words) != len(_QUERY) or not words[0].isdecimal():
        return []
    return [_number(word) for word in words]


def _number(word: str) -> float:
    try:
        value = float(int(word, 16)) if word.startswith("0x") else float(word)
    except (OverflowError, ValueError):
        return 0.0
    return value if math.isfinite(value) and value > 0 else 0.0


def _totals(proc: str) -> Dict[str, float]:
    """Return what the node has spent and moved so far: ticks of its CPUs, and bytes."""
    words = _lines(f"{proc}/stat")[0].split()
    idle = int(words[4]) + int(words[5])
    # Without guests' time, which user time contains.
    found = {"node_cores": float(sum(map(int, words[1:9])) - idle)}
    received = sent = read = written = 0
    for line in _lines(f"{proc}/net/dev")[2:]:
        name, _, counts = line.partition(":")
        fields = counts.split()
        if name.strip() != "lo" and len(fields) > 8:
            received, sent = received + int(fields[0]), sent + int(fields[8])
    for line in _lines(f"{proc}/diskstats"):
        fields = line.split()
        # Whole disks, without what is made of them.
        if len(fields) > 9 and not fields[2].startswith(("loop", "ram", "dm-", "md")) and _is_disk(fields[2]):
            read, written = read + int(fields[5]) * _SECTOR_BYTES, written + int(fields[9]) * _SECTOR_BYTES
    return {**found, "received": received, "sent": sent, "read": read, "written": written, **_of_nfs(proc)}


def _of_nfs(proc: str) -> Dict[str, float]:
    """Return the bytes from and to NFS servers: of the counts that nfsstat(8) shows, those of the wire."""
    read = written = 0
    is_nfs = False
    for line in _lines(f"{proc}/self/mountstats"):
        fields = line.split()
        if line.startswith("device "):
            is_nfs = " with fstype nfs" in line
        elif is_nfs and len(fields) > 6 and fields[0] == "bytes:":
            read, written = read + int(fields[5]), written + int(fields[6])
    return {"shared_read": float(read), "shared_written": float(written)}


def _is_disk(name: str) -> bool:
    return os.path.exists(f"/sys/block/{name}")


def _sizes(proc: str) -> Dict[str, float]:
    """Return the node's cores, and its memory in bytes."""
    memory = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in _lines(f"{proc}/meminfo") if ":" in line}
    total = float(memory.get("MemTotal", 0))
    used = total - memory.get("MemAvailable", 0)
    cores = float(len(os.sched_getaffinity(0)))
    return {"node_cores_total": cores, "node_memory": used, "node_memory_total": total}


def _lines(path: str) -> List[str]:
    try:
        with open(path) as file:
            return file.read().splitlines() or [""]
    except OSError:
        return [""]
