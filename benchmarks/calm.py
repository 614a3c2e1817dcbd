"""No false death: 16 ranks that compute without a pause on 4 nodes of this machine, for 3 minutes; reach 0 deaths.

A death is a rank that did not live to its end, or a new generation of the roster. PHALANX_BENCH_SECONDS chooses a time.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

from benchmarks.cluster import BenchCluster, bench_cluster
from benchmarks.measure import Figure, show

RANKS = 16


def deaths(seconds: int) -> int:
    with bench_cluster(slots=RANKS // 4) as cluster:
        cluster.up()
        before = generation(cluster)
        output = cluster.directory.parent / "output"
        busy = f"timeout {seconds} sh -c 'while :; do :; done'; echo lived"
        try:
            words = ("run", "--launcher", "mpi", "-n", str(RANKS), "--", "sh", "-c", busy)
            cluster.show(output, *words, timeout_s=3 * seconds + 60)
        except subprocess.CalledProcessError:
            print(output.read_text()[-2000:])
        found = RANKS - output.read_text().count("lived") + generation(cluster) - before
        cluster.down()
    return found


def generation(cluster: BenchCluster) -> int:
    return json.loads(cluster.on_head("cat /opt/phalanx/roster.json"))["generation"]


def figures() -> Iterator[Figure]:
    seconds = int(os.environ.get("PHALANX_BENCH_SECONDS", "180"))
    what = f"deaths among 4 nodes and {RANKS} busy ranks in {seconds} s"
    yield Figure(what, (float(deaths(seconds)),), unit="", reach=0)


if __name__ == "__main__":
    show(list(figures()))
