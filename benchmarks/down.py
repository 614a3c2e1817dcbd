"""`phalanx down` of four nodes, verified: target 3 s."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cluster import bench_cluster
from benchmarks.measure import Figure, repeat, show


def down_once() -> float:
    with bench_cluster() as cluster:
        cluster.up()
        return cluster.down()


def figures() -> Iterator[Figure]:
    yield Figure("down, verified, 4 nodes", repeat(down_once), target=3)


if __name__ == "__main__":
    show(list(figures()))
