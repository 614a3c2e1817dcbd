"""`phalanx run -- true` on four nodes, beyond `mpiexec -n 4 -N 1 true` on the head: target 0.5 s. Alternating."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cluster import BenchCluster, bench_cluster
from benchmarks.measure import REPEATS, Figure, show

TIMED_ON_HEAD = """python3 -c 'import subprocess, time
started = time.perf_counter()
subprocess.run("mpiexec -n 4 -N 1 true".split(), check=True)
print(time.perf_counter() - started)'"""


def pair(cluster: BenchCluster) -> tuple[float, float]:
    run_s = cluster.phalanx("run", "--launcher", "mpi", "-n", "4", "-N", "1", "--", "true")
    return run_s, float(cluster.on_head(TIMED_ON_HEAD))


def figures() -> Iterator[Figure]:
    with bench_cluster() as cluster:
        cluster.up()
        pair(cluster)  # warm up: the first ssh connection takes longer
        runs, typed = zip(*(pair(cluster) for _ in range(REPEATS)), strict=True)
        cluster.down()
    beyond = tuple(run_s - typed_s for run_s, typed_s in zip(runs, typed, strict=True))
    yield Figure("run -- true on 4 nodes, beyond mpiexec on the head", beyond, target=0.5)
    yield Figure("  for comparison: phalanx run --launcher mpi -n 4 -N 1 -- true", runs)
    yield Figure("  for comparison: mpiexec -n 4 -N 1 true, on the head", typed)


if __name__ == "__main__":
    show(list(figures()))
