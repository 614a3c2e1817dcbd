"""Strikes of the soak that are aimed at a phase of a job: from the arrival of its code to its end.

A phase is recognized by the processes of the job on the nodes. Some last only some hundredths of a second, so that a
strike may come a little later than aimed: what must hold afterwards is the same.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import slow_package
from benchmarks.soak_cluster import NODES, Seen, SoakCluster, is_runner, verb_of

RUNNER, HEAD = "runner", "head"
_COMES_WITHIN_S = 120.0
_LOOK_EVERY_S = 0.01
# What `run` ends with says that the head took nothing.
REFUSALS = ("the head did not accept the job", "the code could not be sent")
# Large enough that it is on its way for some tenths of a second.
_CODE_BYTES = 32 << 20


@dataclass(frozen=True)
class Phase:
    """Whether it has come, by the job's processes on all nodes; `begins` prepares what `run` is typed with."""

    has_come: Callable[[list[Seen], str], bool]
    begins: Callable[[SoakCluster], Path] = lambda cluster: cluster.code
    may_be_refused: bool = False


def _code(cluster: SoakCluster) -> Path:
    """A directory whose content has never gone over."""
    directory = cluster.bench.directory / "large"
    directory.mkdir(exist_ok=True)
    (directory / "rank.py").write_text((cluster.code / "rank.py").read_text())
    (directory / "data").write_bytes(random.randbytes(_CODE_BYTES))
    return directory


def _environment(cluster: SoakCluster) -> Path:
    """A directory with requirements that no environment was made for yet, and that take seconds."""
    package = cluster.bench.directory / "slow"
    if not package.exists():
        slow_package.write(package, "time.monotonic() < began + 5")
        cluster.phalanx("put", str(package))
    directory = cluster.bench.directory / "with-environment"
    directory.mkdir(exist_ok=True)
    (directory / "rank.py").write_text((cluster.code / "rank.py").read_text())
    (directory / "requirements.txt").write_text(f"--no-index\n/efs/slow\n# {time.time_ns()}\n")
    return directory


def _starters(seen: Iterable[Seen], job_id: str) -> int:
    return len({one.hostname for one in seen if verb_of(one.argv) == ("starter", job_id)})


def _has_ranks(seen: Iterable[Seen], job_id: str) -> bool:
    return any(one.job == job_id and one.argv[:2] == ("python", "rank.py") for one in seen)


def _is_dialled(seen: Iterable[Seen], job_id: str) -> bool:
    return any(one.argv[0] == "ssh" and job_id in one.line for one in seen)


def _is_made(seen: Iterable[Seen], job_id: str) -> bool:
    return any(one.job == job_id and ("pip" in one.argv or "uv" in one.argv) for one in seen)


PHASES = {
    "code": Phase(lambda _seen, _job_id: True, _code, may_be_refused=True),
    "environment": Phase(_is_made, _environment),
    "dial": Phase(_is_dialled, may_be_refused=True),
    "starters": Phase(lambda seen, job_id: _starters(seen, job_id) > 0, may_be_refused=True),
    "first rank": Phase(_has_ranks),
    "end": Phase(lambda seen, job_id: not _has_ranks(seen, job_id)),
}


def named(fault: str) -> tuple[str, Phase] | None:
    """The victim and the phase of a fault such as "head at dial"; None for other faults."""
    victim, _, name = fault.partition(" at ")
    return (victim, PHASES[name]) if name in PHASES else None


def strike(cluster: SoakCluster, fault: str, job_id: str) -> float | None:
    """Wait for the phase, and kill the victim; None when the job never came to it."""
    victim, phase = named(fault) or ("", None)
    assert phase
    ending = _stop(cluster, job_id) if fault.endswith(" at end") else None
    deadline = time.monotonic() + _COMES_WITHIN_S
    try:
        while time.monotonic() < deadline:
            seen = list(cluster.processes())
            if phase.has_come(seen, job_id) and (struck_at := _kill(cluster, victim, seen, job_id)):
                return struck_at
            time.sleep(_LOOK_EVERY_S)
        return None
    finally:
        if ending:
            ending.communicate(timeout=120)


def _stop(cluster: SoakCluster, job_id: str) -> subprocess.Popen[str]:
    """Have the job end once its ranks run."""
    deadline = time.monotonic() + _COMES_WITHIN_S
    while not _has_ranks(cluster.processes(), job_id) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
    ending = cluster.start("stop", job_id)
    while _has_ranks(cluster.processes(), job_id) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
    return ending


def _kill(cluster: SoakCluster, victim: str, seen: Iterable[Seen], job_id: str) -> float | None:
    """Kill the head with all that runs there, or the job's runner; while there is none yet, who takes the submission.

    Return when, or None while the one becomes the other.
    """
    if victim == HEAD:
        return cluster.fault({"kill": {"instance_id": cluster.nodes()[NODES[0]]["instance_id"]}})
    if runners := [one.pid for one in seen if is_runner(one, job_id)]:
        return _end(runners[0])
    takers = _takers(seen, job_id)
    if len(takers) != 1:
        return None
    # Stopped, so that it can't start a runner between this look and its end.
    with contextlib.suppress(ProcessLookupError):
        os.kill(takers[0], signal.SIGSTOP)
    if _takers(cluster.processes(), job_id) == takers:
        return _end(takers[0])
    with contextlib.suppress(ProcessLookupError):
        os.kill(takers[0], signal.SIGCONT)
    return None


def _takers(seen: Iterable[Seen], job_id: str) -> list[int]:
    return [one.pid for one in seen if verb_of(one.argv) == ("submit", job_id)]


def _end(pid: int) -> float:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return time.time()
