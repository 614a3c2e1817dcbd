"""A cluster while its shared directory is away: what the weather's soak checks in lives with `storage`.

Jobs run as it stops answering. Until it answers again, `status`, `nodes`, `ssh` and `stop` must go on and no node may
be given up; afterwards the job goes on, and its line has named the cause.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from benchmarks.drill.local_cluster import LocalCluster, listed, reason
from localcloud.weather.absences import AWAY_S, WITHIN_S

KIND = "storage"
SILENT = "the shared directory /efs does not answer"
# It takes no lock of the directory, for which others would wait in a way that no signal ends.
_PROGRAM = "import os, time\nfor n in range(10**6):\n    os.listdir('/efs'); print(n, flush=True); time.sleep(1)"
_GOES_ON, _ENDS = "goes-on", "ends"
# A look takes a second of CPU time; the machine has other work.
_LOOK_EVERY_S = 10.0
_GOES_ON_WITHIN_S = 120.0
# The weather reports that it strikes before it does, and it is read a moment later.
_MARGIN_S = 3.0


@dataclass
class Seen:
    """How long the directory was away, as a node saw it, and the slowest answer of each command meanwhile.

    `looks` is how often all of them were given. All is 0 if the weather struck before the jobs ran.
    """

    away_s: float = 0.0
    looks: int = 0
    slowest_s: dict[str, float] = field(default_factory=dict)


class Absence:
    """Watches one absence. `speed`: the weather's; `nodes`: the ready nodes' names and instances before it."""

    def __init__(self, cluster: LocalCluster, speed: float, struck: Callable[[], bool]) -> None:
        self.seen = Seen()
        self._cluster, self._speed, self._struck = cluster, speed, struck
        self.nodes: list[tuple[str, str]] = []
        self._ends = ""

    def watch(self) -> str:
        """Return what was wrong; nothing is known, and nothing wrong, if it was away before jobs ran."""
        if self._struck():
            return ""
        with ThreadPoolExecutor(1) as pool, self._cluster.start(*_run(_GOES_ON)) as followed:
            try:
                ready = self._begin()
                if self._struck():
                    return ""
                wrong = ready or self._wait_for(self._struck, WITHIN_S / self._speed, "the weather does not strike")
                return wrong or "; ".join(self._during(pool) or self._afterwards(followed))
            finally:
                self._cluster.phalanx("stop", _GOES_ON)
                followed.kill()

    def _begin(self) -> str:
        """Begin the job that will be stopped, and wait until both run and have printed."""
        self.nodes = self._ready()
        if (done := self._cluster.phalanx(*_run(_ENDS, "--detach"))).returncode:
            return reason(done.stderr)
        # Names of jobs are on the shared directory.
        self._ends = done.stdout.strip()
        return self._wait_for(lambda: all(map(self._lines, (_GOES_ON, _ENDS))), _GOES_ON_WITHIN_S, "no job begins")

    def _during(self, pool: ThreadPoolExecutor) -> list[str]:
        """Give all commands again and again, until a node can read the directory again."""
        began = time.monotonic()
        reading = pool.submit(self._cluster.phalanx, "ssh", self.nodes[-1][0], "--", "ls /efs", timeout_s=2 * AWAY_S)
        problems = [*self._stop(), *self._looks(reading)]
        self.seen.away_s = round(time.monotonic() - began, 1)
        if self.seen.away_s < AWAY_S / self._speed - _MARGIN_S:
            problems.append(f"the shared directory was away for {self.seen.away_s:g} s only")
        return [*problems, *([] if reading.result().returncode == 0 else ["a node can't read the directory again"])]

    def _looks(self, reading: Future[subprocess.CompletedProcess[str]]) -> Iterator[str]:
        while not reading.done():
            problems = [*self.look()]
            if reading.done():  # some of them answered when it was over
                return
            self.seen.looks += 1
            yield from problems
            deadline = time.monotonic() + _LOOK_EVERY_S
            while not reading.done() and time.monotonic() < deadline:
                time.sleep(0.2)

    def look(self) -> Iterator[str]:
        """Yield what a command says that it should not while the directory is away."""
        status = self._timed("status")
        if status.returncode or SILENT not in status.stdout:
            yield f"`status` ended with {status.returncode}: {status.stdout[-500:]}{status.stderr[-500:]}"
        if (nodes := self._ready()) != self.nodes:
            yield f"the ready nodes are {nodes}, and were {self.nodes}"
        ssh = self._timed("ssh", self.nodes[-1][0], "--", "hostname")
        if ssh.returncode or not ssh.stdout.startswith("ip-"):
            yield f"`ssh` ended with {ssh.returncode}: {ssh.stdout}{ssh.stderr[-500:]}"

    def _stop(self) -> Iterator[str]:
        stopped = self._timed("stop", self._ends).stderr
        if "stopped on request" not in stopped or "no process of it is left" not in stopped:
            yield f"`stop`: {stopped[-500:]}"

    def _afterwards(self, followed: subprocess.Popen[str]) -> Iterator[str]:
        """Yield what is wrong once the directory answers again."""
        before = self._lines(_GOES_ON)
        later = self._wait_for(lambda: self._lines(_GOES_ON) > before, _GOES_ON_WITHIN_S, "the job does not go on")
        yield from filter(None, [later])
        if (nodes := self._ready()) != self.nodes:
            yield f"afterwards the ready nodes are {nodes}, and were {self.nodes}"
        self._cluster.phalanx("stop", _GOES_ON)
        shown = "".join(followed.communicate(timeout=_GOES_ON_WITHIN_S))
        if f"{SILENT}; the job goes on" not in shown:
            yield f"the job's line does not name the cause: {shown[-500:]}"
        states = {one["name"]: one["state"] for one in listed(self._cluster.phalanx("jobs", "--json").stdout)}
        if (states.get(_ENDS), states.get(_GOES_ON)) != ("stopped", "stopped"):
            yield f"the jobs are {states}"

    def _timed(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        began = time.monotonic()
        done = self._cluster.phalanx(*arguments)
        took_s, name = round(time.monotonic() - began, 1), arguments[0]
        self.seen.slowest_s[name] = max(took_s, self.seen.slowest_s.get(name, 0.0))
        return done

    def _ready(self) -> list[tuple[str, str]]:
        nodes = json.loads(self._timed("nodes", "--json").stdout or "[]")
        return [(node["name"], node["instance_id"]) for node in nodes if node["state"] == "ready"]

    def _lines(self, job: str) -> int:
        return self._cluster.phalanx("logs", job).stdout.count("\n")

    def _wait_for(self, is_so: Callable[[], bool], within_s: float, otherwise: str) -> str:
        deadline = time.monotonic() + within_s
        while not is_so():
            if time.monotonic() > deadline:
                return f"{otherwise} within {within_s:.0f} s"
            time.sleep(0.2)
        return ""


def _run(name: str, *options: str) -> tuple[str, ...]:
    return ("run", *options, "--name", name, "--launcher", "exec", "-n", "1", "--", "python", "-c", _PROGRAM)
