"""An array of 100 tasks of `true` on 4 nodes: target 10 s from the command to the last task's verified end."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cluster import bench_cluster
from benchmarks.measure import REPEATS, Figure, show

NODES, SLOTS, TASKS = 4, 4, 100


def figures() -> Iterator[Figure]:
    with bench_cluster(NODES, SLOTS) as cluster:
        cluster.up()
        words = ("run", "--launcher", "exec", "-n", "1", "--array", f"1-{TASKS}", "--", "true")
        cluster.phalanx(*words)
        runs = tuple(cluster.phalanx(*words) for _ in range(REPEATS))
        yield Figure(f"an array of {TASKS} tasks of true on {NODES} nodes of {SLOTS} slots", runs, target=10.0)
        cluster.down()


if __name__ == "__main__":
    show(list(figures()))
