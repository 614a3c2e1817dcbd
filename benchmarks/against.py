"""Compare `up` and the start of a job with another checkout that is set up (OTHER=DIRECTORY), alternating."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.cluster import BenchCluster, bench_cluster
from benchmarks.measure import PHALANX, Figure, show

TIMES = 20
JOB = ("run", "--launcher", "mpi", "-n", "4", "-N", "1", "--", "true")


def other_program() -> str:
    if not (other := os.environ.get("OTHER")):
        raise SystemExit("against: set OTHER to the other checkout, as in OTHER=../before python -m benchmarks against")
    return f"{os.path.abspath(other)}/.venv/bin/phalanx"  # noqa: PTH100 - resolve() would follow the environment's links


def ratios(mine: tuple[float, ...], others: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(own / other for own, other in zip(mine, others, strict=True))


def figures() -> Iterator[Figure]:
    with ExitStack() as stack:
        clusters = [stack.enter_context(bench_cluster(program=program)) for program in (PHALANX, other_program())]
        ups = [(cluster.up(),) for cluster in clusters]
        for cluster in clusters:
            cluster.phalanx(*JOB)  # warm up: the first ssh connection takes longer
        jobs = tuple(zip(*(_turn(clusters) for _ in range(TIMES)), strict=True))
        for cluster in clusters:
            cluster.down()
    yield Figure("run -- true on 4 nodes, relative to the other checkout", ratios(*jobs), "x", target=1.06)
    yield Figure("  for comparison: this checkout", jobs[0])
    yield Figure("  for comparison: the other checkout", jobs[1])
    yield Figure("  for comparison: up of 4 nodes, relative to the other, once", ratios(*ups), "x")


def _turn(clusters: list[BenchCluster]) -> tuple[float, ...]:
    return tuple(cluster.phalanx(*JOB) for cluster in clusters)


if __name__ == "__main__":
    show(list(figures()))
