"""Compare `up` and a job with another checkout that is set up (OTHER=DIRECTORY), alternating.

JOB is the command line of the job, TIMES the number of pairs, NODES that of the nodes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.cluster import BenchCluster, bench_cluster
from benchmarks.measure import PHALANX, Figure, show

TIMES = int(os.environ.get("TIMES", "20"))
NODES = int(os.environ.get("NODES", "4"))
JOB = os.environ.get("JOB", "run --launcher mpi -n 4 -N 1 -- true").split()


def other_program() -> str:
    if not (other := os.environ.get("OTHER")):
        raise SystemExit("against: set OTHER to the other checkout, as in OTHER=../before python -m benchmarks against")
    return f"{os.path.abspath(other)}/.venv/bin/phalanx"  # noqa: PTH100 - resolve() would follow the environment's links


def ratios(mine: tuple[float, ...], others: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(own / other for own, other in zip(mine, others, strict=True))


def figures() -> Iterator[Figure]:
    with ExitStack() as stack:
        programs = (PHALANX, other_program())
        clusters = [stack.enter_context(bench_cluster(NODES, program=program)) for program in programs]
        ups = [(cluster.up(),) for cluster in clusters]
        for cluster in clusters:
            cluster.phalanx(*JOB)  # warm up: the first ssh connection takes longer
        jobs = tuple(zip(*(_turn(clusters, number) for number in range(TIMES)), strict=True))
        for cluster in clusters:
            cluster.down()
    yield Figure(f"{' '.join(JOB)}, relative to the other checkout", ratios(*jobs), "x", target=1.06)
    yield Figure("  for comparison: this checkout", jobs[0])
    yield Figure("  for comparison: the other checkout", jobs[1])
    yield Figure(f"  for comparison: up of {NODES} nodes, relative to the other, once", ratios(*ups), "x")


def _turn(clusters: list[BenchCluster], number: int) -> tuple[float, ...]:
    """Run the job on each cluster; every other time in the opposite order, because the first of two may be slower."""
    order = 1 if number % 2 else -1
    took_s = [cluster.phalanx(*JOB) for cluster in clusters[::order]]
    return tuple(took_s[::order])


if __name__ == "__main__":
    show(list(figures()))
