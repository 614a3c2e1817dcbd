"""`phalanx up` of many local nodes, until they are ready: target 20 s for 64 nodes, 90 s for 256.

`python -m benchmarks many_nodes` measures 16 and 64; PHALANX_BENCH_NODES="64 256" chooses others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from benchmarks.cluster import bench_cluster
from benchmarks.measure import Figure, show

TARGET_S = {64: 20.0, 256: 90.0}


def up_once(nodes: int) -> float:
    with bench_cluster(nodes) as cluster:
        taken_s = cluster.up()
        cluster.down()
    return taken_s


def figures() -> Iterator[Figure]:
    for nodes in map(int, os.environ.get("PHALANX_BENCH_NODES", "16 64").split()):
        yield Figure(f"up of {nodes} nodes, local cloud not running", (up_once(nodes),), target=TARGET_S.get(nodes))


if __name__ == "__main__":
    show(list(figures()))
