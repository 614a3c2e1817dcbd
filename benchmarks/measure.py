"""What all benchmarks share: repeat a measurement, take the median, and print it with its target."""

from __future__ import annotations

import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPEATS = 5
BIN = Path(sys.executable).parent
PHALANX = str(BIN / "phalanx")
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
GOES_ON = "it gets each result; default: the newest of the same seed while it is not complete, else today's"


def todays_result(name: str, ending: str) -> Path:
    """Return where a benchmark keeps what it found today."""
    return RESULTS / f"{name}-{datetime.date.today().isoformat()}.{ending}"


def record_to_go_on(name: str, planned: int, over: Callable[[Path], int]) -> Path:
    """Return the newest record of the same soak if it has fewer results than are planned; else today's.

    `over` counts a record's results of the same seed. What a soak chooses from may have changed since a record was
    complete: it stays complete.
    """
    for record in sorted(RESULTS.glob(f"{name}-[0-9]*.jsonl"), reverse=True):
        if count := over(record):
            return record if count < planned else todays_result(name, "jsonl")
    return todays_result(name, "jsonl")


def read_results(record: Path) -> list[dict[str, Any]]:
    """Read a record of an earlier run, one result a line; no results if there is none."""
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


@dataclass(frozen=True)
class Figure:
    """One measured quantity; `target` is the limit it must not exceed, None for a mere comparison."""

    name: str
    values: tuple[float, ...]
    unit: str = "s"
    target: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        return "" if self.target is None else "met" if self.median <= self.target else "MISSED"

    def line(self) -> str:
        target = "" if self.target is None else f"{self.target:g} {self.unit}"
        spread = f"{min(self.values):.3g}–{max(self.values):.3g}" if len(self.values) > 1 else ""
        return f"{self.name:<66}{self.median:>9.3f} {self.unit:<4}{spread:>14}  {target:>8}  {self.verdict}".rstrip()


def header() -> str:
    return f"{'figure':<66}{'median':>9} {'':<4}{'from–to':>14}  {'target':>8}"


def seconds(
    argv: Sequence[str], *, cwd: Path = ROOT, env: Mapping[str, str] | None = None, timeout_s: float = 600
) -> float:
    """Run a command, which must succeed; return its wall time."""
    started = time.perf_counter()
    done = subprocess.run(
        argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
    )
    elapsed = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return elapsed


def repeat(once: Callable[[], float], times: int = REPEATS) -> tuple[float, ...]:
    return tuple(once() for _ in range(times))


def pss_mib(pids: set[int]) -> float:
    """Return the proportional set size of some processes: shared memory counts by its share."""
    return sum(_pss_kib(pid) for pid in pids) / 1024


def _pss_kib(pid: int) -> int:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except PermissionError:
        raise SystemExit("memory: the nodes run under other accounts; measure this as root") from None
    except (ProcessLookupError, FileNotFoundError):  # the process ended meanwhile
        return 0
    return next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)


def descendants(root: int) -> set[int]:
    """Return a process and all its descendants."""
    pairs = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout.split()
    parent = dict(zip(map(int, pairs[::2]), map(int, pairs[1::2]), strict=True))
    found = {root}
    while grown := {pid for pid in parent if parent[pid] in found} - found:
        found |= grown
    return found


def environment(**more: str) -> dict[str, str]:
    """Return what a measured program starts with: it may keep its compiled modules, as a user's does."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **more}


def show(figures: Sequence[Figure]) -> None:
    for figure in figures:
        print(figure.line(), flush=True)
