"""Compare `phalanx launch` with dmlc-core's ssh tracker on 4 nodes, until the last worker starts: target ratio 1.1.

The tracker and launch.py are those of the wheel mxnet 1.9.1. They run on the head, because they need ssh to the nodes,
and their time starts there; phalanx's starts on this machine. Both start a scheduler, 4 servers and 4 workers.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.cluster import BenchCluster, bench_cluster
from benchmarks.measure import REPEATS, Figure, show

# Each worker records its start; the scheduler ends when all have, and with it the tracker.
ROLE = """#!/bin/bash
case $DMLC_ROLE in
worker) date +%s%N > /efs/started/$DMLC_NODE_HOST ;;
scheduler) until [ $(ls /efs/started | wc -l) = 4 ]; do sleep 0.02; done; sleep 0.2 ;;
esac
"""
# The tracker calls a method that was removed in Python 3.9.
TRACKER = """import runpy, sys, threading
threading.Thread.isAlive = threading.Thread.is_alive
runpy.run_path(sys.argv.pop(1) + "/mxnet/tools/launch.py", run_name="__main__")
"""
TIMED_ON_HEAD = """cd /efs/launch && date +%s%N && PYTHONPATH=/efs/launch/tracker python3 tracker.py tracker \
-n 4 -s 4 -H /opt/deeplearning/workers bash role.sh >tracker.log 2>&1 || { cat tracker.log; exit 1; }"""


def fetch_tracker(directory: Path) -> None:
    """Extract the tracker's files from MXNet's wheel."""
    pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(directory), "mxnet==1.9.1")
    if subprocess.run(pip, check=False, timeout=600).returncode:
        raise SystemExit("launch: pip can't download the wheel mxnet 1.9.1, which contains dmlc's tracker")
    with zipfile.ZipFile(next(directory.glob("mxnet-*.whl"))) as wheel:
        wanted = [name for name in wheel.namelist() if name.startswith(("dmlc_tracker/", "mxnet/tools/launch.py"))]
        wheel.extractall(directory / "tracker", wanted)


def prepare(cluster: BenchCluster) -> None:
    with tempfile.TemporaryDirectory() as place:
        launch = Path(place) / "launch"
        launch.mkdir()
        fetch_tracker(Path(place))
        (Path(place) / "tracker").rename(launch / "tracker")
        (launch / "role.sh").write_text(ROLE)
        (launch / "tracker.py").write_text(TRACKER)
        cluster.phalanx("put", str(launch))
    (cluster.directory / "role.sh").write_text(ROLE)


def pair(cluster: BenchCluster) -> tuple[float, float]:
    """Return the seconds until the last worker's start: of phalanx launch, and of the tracker."""
    cluster.on_head("rm -rf /efs/started; mkdir /efs/started")
    typed_ns = time.time_ns()
    cluster.phalanx("launch", "-n", "4", "-s", "4", "bash", "role.sh")
    launched_s = (last_start_ns(cluster) - typed_ns) / 1e9
    cluster.on_head("rm -rf /efs/started; mkdir /efs/started")
    began_ns = int(cluster.on_head(TIMED_ON_HEAD).split()[0])
    return launched_s, (last_start_ns(cluster) - began_ns) / 1e9


def last_start_ns(cluster: BenchCluster) -> int:
    times = cluster.on_head("cat /efs/started/*").split()
    if len(times) != 4:
        raise SystemExit(f"{len(times)} of 4 workers recorded their start")
    return max(map(int, times))


def figures() -> Iterator[Figure]:
    with bench_cluster() as cluster:
        cluster.up()
        prepare(cluster)
        pair(cluster)  # warm up: the first ssh connection takes longer
        launched, tracked = zip(*(pair(cluster) for _ in range(REPEATS)), strict=True)
        cluster.down()
    ratios = tuple(one / other for one, other in zip(launched, tracked, strict=True))
    yield Figure("launch on 4 nodes, to the last worker's start, relative to dmlc's", ratios, unit="×", target=1.1)
    yield Figure("  for comparison: phalanx launch -n 4 -s 4", launched)
    yield Figure("  for comparison: launch.py -n 4 -s 4 by dmlc_tracker's ssh, on the head", tracked)


if __name__ == "__main__":
    show(list(figures()))
