"""What a job's environment costs: to make it, at its first use on each node, and in every later job.

RECIPE is a recipe (default: torch), NODES the number of nodes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from benchmarks.cluster import BenchCluster, bench_cluster
from benchmarks.measure import Figure, repeat, show

RECIPE = os.environ.get("RECIPE", "torch")
NODES = int(os.environ.get("NODES", "4"))
_FORGET = "rm -rf /var/lib/phalanx/environments/*"
_COPIED_MB = "du -smD /var/lib/phalanx/environments/*/ | tail -1 | cut -f1"
_KEPT_MB = "du -sm /efs/.phalanx/environments/*.tar.gz | cut -f1"


def figures() -> Iterator[Figure]:
    with bench_cluster(NODES) as cluster:
        cluster.up()

        def job() -> float:
            return cluster.phalanx("run", "--recipe", RECIPE, "--launcher", "exec", "-N", "1", "--", "true")

        made_s = job()
        warm = repeat(job)
        cold = repeat(lambda: _forgotten(cluster) or job(), 3)
        sizes = [float(cluster.on_head(command)) for command in (_COPIED_MB, _KEPT_MB)]
        cluster.down()
    yield Figure(f"the first job with the recipe {RECIPE} on {NODES} nodes, which makes it", (made_s,))
    yield Figure("a job when the environment is made, and no node has a copy", cold)
    yield Figure("a job when each node has its copy", warm)
    yield Figure("the environment", (sizes[0],), "MB")
    yield Figure("its archive on the shared directory", (sizes[1],), "MB")


def _forgotten(cluster: BenchCluster) -> None:
    """Remove all nodes' copies."""
    cluster.phalanx("exec", "--", _FORGET)


if __name__ == "__main__":
    show(list(figures()))
