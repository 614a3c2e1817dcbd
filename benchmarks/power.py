"""Cut the power of a local cluster, again and again: `make soak PART=power`.

While jobs are submitted and run, at a seeded moment, every process of the cluster gets SIGKILL at once: the local
cloud, its nodes with all their processes, and the command lines. Only the state directory is left, which contains the
shared directory; `up` then creates the cluster again. Every confirmed job must be listed with its correct state, end
and have its output. SIGKILL does not clear the page cache: tests/parts/test_power_failures.py covers unsynced bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.__main__ import machine
from benchmarks.cluster import bench_cluster
from benchmarks.measure import ROOT
from benchmarks.soak_cluster import SoakCluster

WHOLE = 50  # points of a run whose result is kept
_LATEST_S = 8.0
_SETTLES_WITHIN_S = 90.0
_FINAL = ("succeeded", "failed", "stopped", "lost")
# Large enough for the code to be sent in parts, through the store.
_CODE_BYTES = 2 << 20
# name → (flags of `run`, the job's command, its possible states after the loss of its head)
_KINDS: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "short": ((), "echo kept", ("succeeded", "lost")),
    "long": ((), "echo kept; sleep 86397", ("lost",)),
    "restarts": (("--restarts", "3"), "echo kept; sleep 2", ("succeeded", "lost")),
    "writes": ((), "while :; do echo kept; sleep 0.02; done", ("lost",)),
}


@dataclass
class Point:
    """One power cut: its time, the jobs that had been confirmed, and the problems afterwards."""

    number: int
    after_s: float
    confirmed: int = 0
    processes: int = 0
    came_back_s: float = 0.0
    states: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Submitter(threading.Thread):
    """A user who submits one job after another until the power is cut; `confirmed` maps accepted ids to kinds."""

    def __init__(self, cluster: SoakCluster, seed: str) -> None:
        super().__init__()
        self.confirmed: dict[str, str] = {}
        self._cluster = cluster
        self._chance = random.Random(seed)
        self.is_over = False

    def run(self) -> None:
        while not self.is_over:
            kind = self._chance.choice(list(_KINDS))
            flags, command, _ = _KINDS[kind]
            arguments = ("run", "--detach", "--launcher", "exec", *flags, "--directory", str(self._code()))
            done = self._cluster.phalanx(*arguments, "--", "sh", "-c", command)
            if done.returncode == 0:
                self.confirmed[done.stdout.strip()] = kind

    def _code(self) -> Path:
        """Return a small directory, or a large one that changes each time."""
        if self._chance.random() < 0.5:
            return self._cluster.code
        large = self._cluster.bench.directory / "large"
        large.mkdir(exist_ok=True)
        (large / "data").write_bytes(self._chance.randbytes(_CODE_BYTES))
        return large


class Known:
    """What users saw of their jobs before the power cut, all of which must stay true."""

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}
        self.ended: dict[str, str] = {}

    def learn(self, jobs: Sequence[dict[str, Any]]) -> None:
        self.ended.update({job["id"]: job["state"] for job in jobs if job["state"] in _FINAL})

    def judge(self, jobs: Sequence[dict[str, Any]]) -> Iterator[str]:
        """Yield what is wrong with the jobs that are listed now, after time to end."""
        listed = {job["id"]: job for job in jobs}
        for job_id, kind in self.kinds.items():
            job = listed.get(job_id)
            if job is None:
                yield f"{job_id} ({kind}) was confirmed, and is not listed"
            elif job_id in self.ended and job["state"] != self.ended[job_id]:
                yield f"{job_id} had {self.ended[job_id]}, and is {job['state']}"
            elif job["state"] not in _KINDS[kind][2]:
                yield f"{job_id} ({kind}) is {job['state']}: {job['message']}"
        for job in jobs:
            if job["state"] not in _FINAL:
                yield f"{job['id']} is {job['state']} and does not end: {job['message']}"


def cut_power(cluster: SoakCluster) -> int:
    """Kill all processes of the cluster; return their number."""
    state = str(cluster.bench.state)
    # The nodes' init processes come first: the kernel ends all others of a node with its init.
    mine = {pid for pid in (int(path.name) for path in Path("/proc").glob("[0-9]*")) if _belongs(pid, state)}
    pids = cluster.bench.local_cloud_pids() | mine
    for pid in sorted(pids - {os.getpid()}):
        with contextlib.suppress(ProcessLookupError):  # it ended with its node
            os.kill(pid, signal.SIGKILL)
    return len(pids)


def _belongs(pid: int, state: str) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return state.encode() in command or f"PHALANX_STATE_DIR={state}".encode() in variables


def strike(cluster: SoakCluster, point: Point, known: Known, seed: str) -> None:
    """Let two users submit jobs, and cut the power."""
    users = [Submitter(cluster, f"{seed} {number}") for number in range(2)]
    for user in users:
        user.start()
    time.sleep(point.after_s)
    known.learn(listed(cluster) if point.number % 2 else [])
    for user in users:
        user.is_over = True
    point.processes = cut_power(cluster)
    for user in users:
        user.join()
        known.kinds.update(user.confirmed)
    point.confirmed = len(known.kinds)


def listed(cluster: SoakCluster) -> list[dict[str, Any]]:
    done = cluster.phalanx("jobs", "--json")
    if done.returncode:
        raise SystemExit(f"`phalanx jobs` ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout or "[]")


def come_back(cluster: SoakCluster, point: Point, known: Known) -> None:
    """Create the cluster again from what is on the disk, and check every job."""
    began = time.monotonic()
    done = cluster.phalanx("up", timeout_s=300)
    point.came_back_s = round(time.monotonic() - began, 1)
    if done.returncode:
        point.problems.append(f"`up` ended with {done.returncode}: {done.stderr[-500:]}")
        return
    jobs = settled(cluster)
    point.problems += known.judge(jobs)
    known.learn(jobs)
    for job in jobs:
        point.states[job["state"]] = point.states.get(job["state"], 0) + 1
    point.problems += unread(cluster, jobs[:3])
    left = cluster.bench.on_head(f"ls {SHARED_JOBS} 2>/dev/null || true").split()
    point.problems += [f"{name} exists and is not listed" for name in set(left) - {job["id"] for job in jobs}]


SHARED_JOBS = "/efs/.phalanx/jobs"


def settled(cluster: SoakCluster) -> list[dict[str, Any]]:
    """Return all jobs once each has ended, or after a timeout."""
    deadline = time.monotonic() + _SETTLES_WITHIN_S
    while True:
        jobs = listed(cluster)
        if all(job["state"] in _FINAL for job in jobs) or time.monotonic() > deadline:
            return jobs
        time.sleep(0.5)


def unread(cluster: SoakCluster, jobs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield jobs whose output can't be read."""
    for job in jobs:
        done = cluster.phalanx("logs", job["id"])
        output = done.stdout + done.stderr
        if done.returncode not in (0, 1) or "Traceback" in output or "damaged" in output:
            yield f"logs {job['id']} ended with {done.returncode}: {output[-300:]}"
        elif job["state"] == "succeeded" and "kept" not in done.stdout:
            yield f"{job['id']} succeeded, and its output is gone: {output[-300:]}"


def power(points: Sequence[Point], seed: int, record: Path | None) -> list[Point]:
    """Cut the power at these points on a new cluster; print each result and append it to the record."""
    known = Known()
    with bench_cluster(nodes=2) as bench:
        spec = bench.directory / "phalanx.yaml"
        spec.write_text(spec.read_text().replace("keep: no", "keep: yes"))
        cluster = SoakCluster(bench)
        bench.up()
        for point in points:
            strike(cluster, point, known, f"{seed} {point.number}")
            come_back(cluster, point, known)
            _show(point)
            if record:
                with record.open("a") as file:
                    file.write(json.dumps(asdict(point)) + "\n")
        bench.phalanx("down", "--yes", "--keep", "no")
    return list(points)


def _show(point: Point) -> None:
    verdict = "; ".join(point.problems) or "passed"
    counts = ", ".join(f"{count} {state}" for state, count in sorted(point.states.items()))
    print(
        f"{point.number:>4}  after {point.after_s:4.2f} s  {point.processes:>4} processes  "
        f"{point.confirmed:>4} jobs ({counts})  back in {point.came_back_s:.0f} s  {verdict}",
        flush=True,
    )


def report(points: Sequence[Point], seed: int) -> str:
    failed = [point for point in points if point.problems]
    known = machine()
    lines = [
        f"{datetime.date.today().isoformat()}: power cut at {len(points)} points with seed {seed}, "
        f"commit {str(known['commit'])[:12]}",
        f"  {len(failed)} failed; {max((point.confirmed for point in points), default=0)} jobs confirmed on one shared "
        f"directory, {sum(point.processes for point in points)} processes killed, {known['cores']} cores",
        *(f"  point {point.number}: {'; '.join(point.problems)}" for point in failed),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=WHOLE, help="number of power cuts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--record", type=Path, help="a file that combines parts into one result; points in it are not repeated"
    )
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    planned = [Point(number, round(chance.uniform(0, _LATEST_S), 2)) for number in range(arguments.count)]
    earlier = read(arguments.record)
    done = earlier + power(planned[len(earlier) :], arguments.seed, arguments.record)
    text = report(done, arguments.seed)
    print("\n" + text, end="")
    if len(done) >= WHOLE:
        (ROOT / "benchmarks" / "results" / f"power-{datetime.date.today().isoformat()}.txt").write_text(text)
    raise SystemExit(any(point.problems for point in done))


def read(record: Path | None) -> list[Point]:
    """Read the results of earlier points."""
    lines = record.read_text().splitlines() if record and record.exists() else []
    return [Point(**json.loads(line)) for line in lines]


if __name__ == "__main__":
    main()
