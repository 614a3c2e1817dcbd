"""Count false deaths: 16 ranks keep 4 nodes on this machine busy for 3 minutes; the target is 0 deaths.

A death is a rank that did not complete, or a new generation of the roster. PHALANX_BENCH_SECONDS sets the duration.
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
            arguments = ("run", "--launcher", "mpi", "-n", str(RANKS), "--", "sh", "-c", busy)
            cluster.show(output, *arguments, timeout_s=3 * seconds + 60)
        except subprocess.CalledProcessError:
            print(output.read_text()[-2000:])
        found = RANKS - output.read_text().count("lived") + generation(cluster) - before
        cluster.down()
    return found


def generation(cluster: BenchCluster) -> int:
    return json.loads(cluster.on_head("cat /opt/phalanx/roster.json"))["generation"]


def figures() -> Iterator[Figure]:
    seconds = int(os.environ.get("PHALANX_BENCH_SECONDS", "180"))
    name = f"deaths among 4 nodes and {RANKS} busy ranks in {seconds} s"
    yield Figure(name, (float(deaths(seconds)),), unit="", target=0)


if __name__ == "__main__":
    show(list(figures()))
