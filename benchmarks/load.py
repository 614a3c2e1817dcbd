"""What measuring the load costs: CPU time of the starters of a job with 16 idle ranks on each of 4 nodes, and bytes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.cluster import bench_cluster
from benchmarks.measure import REPEATS, Figure, repeat, show
from phalanx.runner import frames
from phalanx.runner.liveness import BEAT_EVERY_S
from phalanx.runner.load import Load, pack

NODES, PER_NODE = 4, 16
SECONDS = 40.0
MOST_PERCENT, MOST_BYTES_PER_S, TOP_WITHIN_S = 0.5, 200, 1.0
PROGRAM = "import time; print('ready', flush=True); time.sleep(3600)"


def starters(pids: set[int]) -> list[int]:
    """Return the processes that measure: of a starter and its guard, which have the same command line, the child."""
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in pids if _lives(pid)}
    found = {pid for pid, words in lines.items() if b"starter" in words and words[0].endswith(b"python3")}
    return [pid for pid in found if _parent(pid) in found]


def cpu_s(pids: list[int]) -> float:
    """Return the CPU time of processes so far."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").exists()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def figures() -> Iterator[Figure]:
    with bench_cluster(NODES, PER_NODE) as cluster:
        cluster.up()
        arguments = (
            "run",
            "--launcher",
            "exec",
            "-n",
            str(NODES * PER_NODE),
            "--detach",
            "--",
            "python3",
            "-c",
            PROGRAM,
        )
        job = cluster.output(*arguments, timeout_s=120).strip()
        seen: list[dict[str, float]] = []
        while sum(node["processes"] for node in seen) < NODES * PER_NODE:
            seen = json.loads(cluster.output("top", "--json", timeout_s=60))
        pids = starters(cluster.local_cloud_pids())
        before, began = cpu_s(pids), time.monotonic()
        time.sleep(SECONDS)
        percent = (cpu_s(pids) - before) / (time.monotonic() - began) * 100 / len(pids)
        yield Figure(f"a starter's CPU time, {PER_NODE} ranks, of a core", (percent,), "%", MOST_PERCENT)
        frame = frames.pack(frames.LOAD, payload=pack(Load()))
        yield Figure("its frames with the load, in a second", (len(frame) / BEAT_EVERY_S,), "B", MOST_BYTES_PER_S)
        seen = json.loads(cluster.output("top", "--json", timeout_s=60))
        sent = tuple(node["sent"] for node in seen if node["node"] != "deeplearning-worker1")
        yield Figure("  for comparison: all that a worker sends in a second, with ssh and agent", sent, "B")
        yield Figure(f"top of {NODES} nodes", repeat(lambda: cluster.phalanx("top"), REPEATS), target=TOP_WITHIN_S)
        cluster.phalanx("stop", job)
        cluster.down()


if __name__ == "__main__":
    show(list(figures()))
