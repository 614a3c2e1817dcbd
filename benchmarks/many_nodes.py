"""`phalanx up` of many local nodes, until they are ready: target 20 s for 64 nodes, 90 s for 256.

`python -m benchmarks many_nodes` measures 16 and 64; PHALANX_BENCH_NODES="64 256" chooses others. With another checkout
that is set up (OTHER=DIRECTORY), both are measured in turns, TIMES each (default 3).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from benchmarks.against import other_program, ratios
from benchmarks.cluster import bench_cluster
from benchmarks.measure import PHALANX, Figure, show

TARGET_S = {64: 20.0, 256: 90.0}
TIMES = int(os.environ.get("TIMES", "3"))


def up_once(nodes: int, program: str = PHALANX) -> float:
    with bench_cluster(nodes, program=program) as cluster:
        taken_s = cluster.up()
        cluster.down()
    return taken_s


def figures() -> Iterator[Figure]:
    for nodes in map(int, os.environ.get("PHALANX_BENCH_NODES", "16 64").split()):
        yield from _against(nodes, other_program()) if "OTHER" in os.environ else [_alone(nodes)]


def _alone(nodes: int) -> Figure:
    return Figure(f"up of {nodes} nodes, local cloud not running", (up_once(nodes),), target=TARGET_S.get(nodes))


def _against(nodes: int, other: str) -> Iterator[Figure]:
    # Each goes first half of the time: what the one before it leaves behind, such as pages to write, slows an `up`.
    orders = ((PHALANX, other), (other, PHALANX))
    taken = [{program: up_once(nodes, program) for program in orders[number % 2]} for number in range(TIMES)]
    mine, others = (tuple(one[program] for one in taken) for program in orders[0])
    yield Figure(f"up of {nodes} nodes, relative to the other checkout", ratios(mine, others), "x", target=1.0)
    yield Figure("  for comparison: this checkout", mine)
    yield Figure("  for comparison: the other checkout", others)


if __name__ == "__main__":
    show(list(figures()))
