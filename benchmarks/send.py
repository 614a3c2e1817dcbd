"""Incremental sending of code: `run -- true` from a directory of 200 files of 1 MiB of which one changed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

from benchmarks.cluster import BenchCluster, bench_cluster
from benchmarks.measure import PHALANX, Figure, show

FILES = 200
FILE_BYTES = 1 << 20
ROUNDS = 5
OBJECTS = "/efs/.phalanx/code/objects"


def run(cluster: BenchCluster) -> float:
    return cluster.phalanx("run", "--launcher", "exec", "-n", "1", "--", "true")


def change(cluster: BenchCluster, number: int) -> None:
    (cluster.directory / f"file-{number}").write_bytes(os.urandom(FILE_BYTES))


def store_bytes(cluster: BenchCluster) -> int:
    """Count the bytes sent so far: nothing is removed from the store below its limit."""
    return int(cluster.on_head(f"du -s --apparent-size -B 1 {OBJECTS} 2>/dev/null || echo 0").split()[0])


def whole(cluster: BenchCluster) -> float:
    """Send all of it as one tar over the same connection to the same directory, which every run would have to do."""
    started = time.perf_counter()
    argv = [PHALANX, "ssh", "head", "--", "rm -rf /efs/whole; mkdir /efs/whole; exec tar -x -f - -C /efs/whole"]
    with subprocess.Popen(["tar", "-c", "."], cwd=cluster.directory, stdout=subprocess.PIPE) as tar:
        subprocess.run(argv, stdin=tar.stdout, cwd=cluster.directory, env=cluster.environment(), check=True)
    return time.perf_counter() - started


def figures() -> Iterator[Figure]:
    with bench_cluster(nodes=1) as cluster:
        cluster.up()
        small = tuple(run(cluster) for _ in range(ROUNDS + 1))[1:]  # the first warms up the ssh connection
        for number in range(FILES):
            change(cluster, number)
        first = run(cluster)
        again, wholes, before = [], [], store_bytes(cluster)
        for number in range(ROUNDS):
            change(cluster, number)
            again.append(run(cluster))
            wholes.append(whole(cluster))
        sent = (store_bytes(cluster) - before) / ROUNDS
        cluster.down()
    yield Figure("run from 200 MiB of code, 1 MiB changed: share of bytes sent", (sent / FILES / FILE_BYTES,), "", 0.01)
    yield Figure("  for comparison: time beyond a run from an empty directory", beyond(tuple(again), small))
    yield Figure("  for comparison: the same for the first run", (first - min(small),))
    yield Figure("  for comparison: all of it as one tar, same connection", tuple(wholes))


def beyond(values: tuple[float, ...], base: tuple[float, ...]) -> tuple[float, ...]:
    """Subtract the base's value of the same round from each value."""
    return tuple(value - own for value, own in zip(values, base, strict=True))


if __name__ == "__main__":
    show(list(figures()))
