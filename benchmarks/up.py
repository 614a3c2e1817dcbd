"""`phalanx up` typed → four nodes ready, the local cloud not running before: reach 5 s."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cluster import bench_cluster
from benchmarks.measure import Figure, repeat, show


def up_once() -> float:
    with bench_cluster() as cluster:
        taken_s = cluster.up()
        cluster.down()
    return taken_s


def figures() -> Iterator[Figure]:
    yield Figure("up typed → ready, local cloud not running, 4 nodes", repeat(up_once), reach=5)


if __name__ == "__main__":
    show(list(figures()))
