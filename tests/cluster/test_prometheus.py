"""`phalanx exporter` of a real cluster, as Debian's Prometheus reads it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from fleet_fakes import until
from ports import free_port
from prometheus_server import dashboard_queries, prometheus, results
from terminals import Terminal

pytestmark = pytest.mark.cluster

TRAIN = """
import time
for step in range(10_000):
    print(f"phalanx: step={step} loss={1 / (step + 1):.6f}", flush=True)
    time.sleep(0.2)
"""


def test_prometheus_reads_the_exporter_and_the_dashboard_has_what_a_cluster_without_gpus_has(
    cluster: Terminal, tmp_path: Path
):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    run = ("run", "--directory", str(tmp_path / "code"), "--launcher", "exec", "-N", "1", "--detach", "--")
    job = cluster.phalanx(*run, "python3", "train.py").stdout.strip()
    port = free_port()
    exporter = cluster.start("exporter", "--listen", f"127.0.0.1:{port}")
    try:
        with prometheus(tmp_path, port) as address:
            until(lambda: len(results(address, f'phalanx_rank_steps_per_second{{job_id="{job}"}} > 0')) == 4, 120)
            for query in dashboard_queries():
                assert bool(results(address, query)) != ("DCGM" in query), query
            assert [one["value"][1] for one in results(address, "phalanx_up")] == ["1"]
            ranks = results(address, f'phalanx_rank_step{{job_id="{job}"}}')
            assert {one["metric"]["rank"] for one in ranks} == {f"rank {number}" for number in range(4)}
            assert "a second" in cluster.phalanx("status").stdout and "loss" in cluster.phalanx("top").stdout
    finally:
        exporter.send_signal(signal.SIGINT)
        shown, _ = exporter.communicate(timeout=60)
        cluster.phalanx("stop", job)
    assert exporter.returncode == 0 and f"http://127.0.0.1:{port}/metrics" in shown, shown
