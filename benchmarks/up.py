"""`phalanx up` of four nodes until they are ready, with no local cloud running before: target 5 s."""

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
    yield Figure("up of 4 nodes, local cloud not running", repeat(up_once), target=5)


if __name__ == "__main__":
    show(list(figures()))
