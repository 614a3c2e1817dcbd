"""`phalanx up` of an EMR cluster of four nodes until they are ready, with no local cloud running before: target 8 s."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cluster import bench_cluster
from benchmarks.measure import Figure, repeat, show

SPEC = "name: bench\ncloud: local-emr\nnodes: 4\nmin: 4\ntype: m5.xlarge\nkeep: no\nemr: {logs: s3://bench-logs}\n"


def up_once() -> float:
    with bench_cluster() as cluster:
        (cluster.directory / "phalanx.yaml").write_text(SPEC)
        taken_s = cluster.up()
        cluster.down()
    return taken_s


def figures() -> Iterator[Figure]:
    yield Figure("up of an EMR cluster of 4 nodes", repeat(up_once), target=8)


if __name__ == "__main__":
    show(list(figures()))
