"""Compare training on Fashion-MNIST by phalanx and by hand with torchrun, in alternating pairs on the same nodes.

Measures images per second of the training loop only, as the example times it. PHALANX_BENCH_PAIRS=10 sets the pairs.
"""

from __future__ import annotations

import csv
import io
import math
import os
import statistics
from collections.abc import Iterator

from benchmarks.cluster import BenchCluster, bench_cluster
from benchmarks.measure import ROOT, Figure, show

NODES = 2
EPOCHS = 2
IMAGES = 54_000  # the training set; 6,000 of the 60,000 images are for validation
EXAMPLE = ROOT / "examples" / "fashion_mnist"
# Student's t, two-sided 95%, by degrees of freedom; beyond the table, about the normal distribution's.
T_95 = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 11: 2.201, 14: 2.145, 19: 2.093, 29: 2.045}


def images_per_s(cluster: BenchCluster, out: str) -> float:
    """Compute the rate from the example's metrics.csv."""
    rows = list(csv.DictReader(io.StringIO(cluster.on_head(f"cat {out}/metrics.csv"))))
    return IMAGES * len(rows) / float(rows[-1]["elapsed_time"])


def under_phalanx(cluster: BenchCluster, number: int) -> float:
    out = f"/efs/out/phalanx-{number}"
    arguments = ("run", "--launcher", "torchrun", "-N", "1", "--no-requirements", "--directory", str(EXAMPLE), "--")
    cluster.phalanx(*arguments, "train.py", "--epochs", str(EPOCHS), "--out", out)
    return images_per_s(cluster, out)


def by_hand(cluster: BenchCluster, number: int) -> float:
    out, port = f"/efs/out/hand-{number}", 29500 + number
    torchrun = (
        f"cd /efs/fashion_mnist && torchrun --nnodes {NODES} --nproc-per-node 1 --node-rank $rank"
        f" --master-addr deeplearning-worker1 --master-port {port} train.py --epochs {EPOCHS} --out {out}"
    )
    names = " ".join(f"deeplearning-worker{one}" for one in range(1, NODES + 1))
    cluster.on_head(
        f'rank=0; for node in {names}; do ssh $node "{torchrun}" & rank=$((rank+1)); done; wait', timeout_s=600
    )
    return images_per_s(cluster, out)


def interval_95(values: list[float]) -> tuple[float, float]:
    """Return the 95% confidence interval of the mean."""
    half = T_95.get(len(values) - 1, 2.0) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values) - half, statistics.mean(values) + half


def figures() -> Iterator[Figure]:
    pairs = int(os.environ.get("PHALANX_BENCH_PAIRS", "10"))
    with bench_cluster(NODES) as cluster:
        cluster.up()
        cluster.phalanx("put", str(EXAMPLE), "fashion_mnist")
        ours, theirs = [], []
        for number in range(pairs):
            # The order alternates within the pairs, too, because the first run finds the machine as the other left it.
            for one in sorted((0, 1), reverse=bool(number % 2)):
                (theirs if one else ours).append((by_hand if one else under_phalanx)(cluster, number))
        cluster.down()
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    low, high = interval_95(ratios)
    yield Figure("1 - upper end of the 95% interval of phalanx : torchrun by hand", (1 - high,), unit="", target=0)
    yield Figure("  for comparison: lower end of that interval", (low,), unit="")
    yield Figure(f"  for comparison: the ratio, {pairs} alternating pairs", tuple(ratios), unit="")
    yield Figure("  for comparison: images/s under phalanx", tuple(ours), unit="/s")
    yield Figure("  for comparison: images/s under torchrun by hand", tuple(theirs), unit="/s")


if __name__ == "__main__":
    show(list(figures()))
