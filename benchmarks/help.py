"""What short commands take: `--help` 0.08 s, `status` 0.30 s, `jobs` 0.35 s; the last two of a cluster of two nodes.

For comparison, an empty Python and installed alternatives.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks.cluster import bench_cluster
from benchmarks.measure import PHALANX, Figure, repeat, seconds, show

ALTERNATIVES = ("torchx", "sky", "pcluster")


def figures() -> Iterator[Figure]:
    yield Figure("phalanx --help", repeat(lambda: seconds([PHALANX, "--help"])), target=0.08)
    with bench_cluster(2) as cluster:
        cluster.up()
        for command, target_s in (("status", 0.30), ("jobs", 0.35)):
            yield Figure(f"phalanx {command}", repeat(partial(cluster.phalanx, command)), target=target_s)
        cluster.down()
    yield Figure("  for comparison: python -c pass", repeat(lambda: seconds([sys.executable, "-c", "pass"])))
    for path in filter(None, map(shutil.which, ALTERNATIVES)):
        yield Figure(
            f"  for comparison: {path.rpartition('/')[2]} --help", repeat(lambda path=path: seconds([path, "--help"]))
        )


if __name__ == "__main__":
    show(list(figures()))
