"""The start and end of 16 processes on 4 nodes by `run`: target 0.5 s beyond mpiexec, and 1.15 times torchrun.

The runs alternate with commands on the head: `mpiexec -n 16 -N 4 true`, and one torchrun per node over ssh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.cluster import BenchCluster, bench_cluster
from benchmarks.measure import REPEATS, Figure, show

NODES, PER_NODE = 4, 4
TIMED = """python3 -c 'import subprocess, time
started = time.perf_counter()
subprocess.run(["sh", "-c", "{command}"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(time.perf_counter() - started)'"""
MPIEXEC = f"mpiexec -n {NODES * PER_NODE} -N {PER_NODE} true"
TORCHRUN = (
    f"torchrun --nnodes {NODES} --nproc-per-node {PER_NODE} --rdzv-backend c10d"
    " --rdzv-endpoint deeplearning-worker1:{port} --rdzv-id {port} --no-python true"
)


def by_hand_on_every_node(command: str) -> str:
    """Return the shell command to start a command on each node and wait for all of them."""
    names = " ".join(f"deeplearning-worker{number}" for number in range(1, NODES + 1))
    return f"for node in {names}; do ssh $node {command} & done; wait"


def through_run(cluster: BenchCluster, launcher: str) -> float:
    counts = ("-n", str(NODES * PER_NODE), "-N", str(PER_NODE)) if launcher == "mpi" else ("-N", str(PER_NODE))
    return cluster.phalanx("run", "--launcher", launcher, *counts, "--", "true")


def mpi_by_hand(cluster: BenchCluster, _round: int) -> float:
    return float(cluster.on_head(TIMED.format(command=MPIEXEC)))


def torchrun_by_hand(cluster: BenchCluster, round_: int) -> float:
    command = by_hand_on_every_node(TORCHRUN.format(port=29400 + round_))
    return float(cluster.on_head(TIMED.format(command=command), timeout_s=300))


def alternating(
    cluster: BenchCluster, launcher: str, by_hand: Callable[[BenchCluster, int], float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    # Warm up: the first run of each kind reads its files from the disk.
    through_run(cluster, launcher)
    by_hand(cluster, 0)
    pairs = [(through_run(cluster, launcher), by_hand(cluster, 1 + number)) for number in range(REPEATS)]
    runs, typed = zip(*pairs, strict=True)
    return runs, typed


def figures() -> Iterator[Figure]:
    with bench_cluster(NODES, PER_NODE) as cluster:
        cluster.up()
        runs, typed = alternating(cluster, "mpi", mpi_by_hand)
        beyond = tuple(run_s - typed_s for run_s, typed_s in zip(runs, typed, strict=True))
        yield Figure("16 processes on 4 nodes, beyond mpiexec on the head", beyond, target=0.5)
        yield Figure(f"  for comparison: phalanx run --launcher mpi -n {NODES * PER_NODE} -N {PER_NODE} -- true", runs)
        yield Figure(f"  for comparison: {MPIEXEC}, on the head", typed)
        runs, typed = alternating(cluster, "torchrun", torchrun_by_hand)
        ratios = tuple(run_s / typed_s for run_s, typed_s in zip(runs, typed, strict=True))
        yield Figure("16 processes on 4 nodes, relative to torchrun by hand", ratios, unit="×", target=1.15)
        yield Figure(f"  for comparison: phalanx run --launcher torchrun -N {PER_NODE} -- true", runs)
        yield Figure("  for comparison: torchrun on each node over ssh, on the head", typed)
        cluster.down()


if __name__ == "__main__":
    show(list(figures()))
