"""`phalanx stacks` of a job with 16 ranks on each of 4 nodes, when py-spy is on the nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator

from benchmarks.cluster import bench_cluster
from benchmarks.measure import Figure, repeat, show

NODES, PER_NODE = 4, 16
RANKS = NODES * PER_NODE
WITHIN_S = 3.0
PROGRAM = "import time; print('ready', flush=True); time.sleep(3600)"


def figures() -> Iterator[Figure]:
    with bench_cluster(NODES, PER_NODE) as cluster:
        cluster.up()
        arguments = ("run", "--launcher", "exec", "-n", str(RANKS), "--detach", "--", "python3", "-c", PROGRAM)
        job = cluster.output(*arguments, timeout_s=120).strip()
        seen: list[dict[str, object]] = []
        while sum(bool(rank["threads"]) for rank in seen) < RANKS:
            seen = json.loads(cluster.output("stacks", job, "--json", timeout_s=300))["ranks"]
        yield Figure(
            f"stacks of {RANKS} ranks on {NODES} nodes", repeat(lambda: cluster.phalanx("stacks", job)), target=WITHIN_S
        )
        cluster.phalanx("stop", job)
        cluster.down()


if __name__ == "__main__":
    show(list(figures()))
