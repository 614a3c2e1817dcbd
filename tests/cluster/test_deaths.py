"""Nodes die, networks are cut, runners are killed: jobs end in time, say why, and start again where they may."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import Terminal, make_terminal

pytestmark = pytest.mark.cluster

SPEC = "name: deaths\ncloud: local\nnodes: 3\nmin: 2\ntype: c5.large\nshared: /efs\n"
WORK = "echo ready; sleep $((4711 * (PHALANX_RESTART == 0))); echo started again\n"


@pytest.fixture(scope="module")
def fragile() -> Iterator[Terminal]:
    """A cluster of this module's own, because its nodes die."""
    terminal = make_terminal(SPEC)
    (terminal.directory / "work.sh").write_text(WORK)
    try:
        terminal.phalanx("up")
        yield terminal
        terminal.phalanx("down", "--yes")
    finally:
        terminal.phalanx("local", "stop", "--force", check=False)
        shutil.rmtree(terminal.state.parent, ignore_errors=True)


def start(cluster: Terminal, *options: str) -> str:
    """A detached job that prints and waits; its id."""
    words = ("run", "--detach", "--launcher", "exec", *options, "--", "sh", "work.sh")
    job_id = cluster.phalanx(*words).stdout.strip()
    deadline = time.monotonic() + 30
    while cluster.phalanx("logs", job_id).stdout.count("ready") < 3:
        assert time.monotonic() < deadline, "the job never began"
    return job_id


def break_node(cluster: Terminal, name: str, fault: str, **how: Any) -> float:
    """Make the local cloud do this to a node; returns when."""
    nodes = json.loads(cluster.phalanx("nodes", "--json").stdout)
    instance = next(node["instance_id"] for node in nodes if node["name"] == name)
    endpoint = json.loads((cluster.state / "local" / "endpoint.json").read_text())
    request = urllib.request.Request(
        endpoint["url"] + "/_localcloud/faults",
        method="POST",
        data=json.dumps({fault: {"instance_id": instance, **how}}).encode(),
        headers={"X-Localcloud-Key": endpoint["secret_access_key"]},
    )
    urllib.request.urlopen(request, timeout=10).close()
    return time.time()


def job_of(cluster: Terminal, job_id: str) -> dict[str, Any]:
    return next(job for job in json.loads(cluster.phalanx("jobs", "--json").stdout) if job["id"] == job_id)


def wait_for_end(cluster: Terminal, job_id: str, timeout_s: float = 60) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while not (job := job_of(cluster, job_id))["ended_at"]:
        assert time.monotonic() < deadline, job
        time.sleep(0.3)
    return job


def processes_on(cluster: Terminal, node: str) -> str:
    return cluster.on("head", f"ssh {node} ps -eo args=", check=False)


def test_a_killed_runner_is_told_and_its_job_ended_with_nobody_looking(fragile):
    job_id = start(fragile)
    state = f"/efs/.phalanx/jobs/{job_id}/state.json"
    pid = 'python3 -c \'import json, sys; print(json.load(open(sys.argv[1]))["runner"]["pid"])\''
    killed_at = float(fragile.on("head", f"kill -9 $({pid} {state}); date +%s.%N; sleep 4"))
    job = json.loads(fragile.on("head", f"cat {state}"))
    assert (job["state"], job["message"][:21]) == ("lost", "the job's runner died")
    assert job["ended_at"] - killed_at < 5
    assert [node["clean"] for node in job["nodes"]] == [True] * 3
    assert fragile.phalanx("logs", "-f", job_id, check=False).returncode == 1


def test_a_restart_takes_over_from_a_killed_runner(fragile):
    job_id = start(fragile, "--restarts", "1")
    fragile.on("head", f"pkill -9 -f 'runner.pyz submit .*{job_id}'", check=False)
    done = fragile.phalanx("logs", "-f", job_id)
    assert done.stdout.count("started again") == 3
    assert fragile.phalanx("logs", job_id, "--attempt", "0").stdout.count("ready") == 3


def test_a_silent_node_is_lost_within_15_s_and_fences_itself(fragile):
    job_id = start(fragile)
    cut_at = break_node(fragile, "deeplearning-worker2", "partition", cut=True)
    job = wait_for_end(fragile, job_id)
    assert job["message"] == "deeplearning-worker2 was lost: no sign of life for 9 s"
    assert job["tail"] == ["ready"]
    assert job["ended_at"] - cut_at < 15
    assert [node["clean"] for node in job["nodes"]] == [True, False, True]
    assert job["nodes"][1]["message"].startswith("unverified, fenced: ")
    time.sleep(max(0.0, cut_at + 32 - time.time()))
    break_node(fragile, "deeplearning-worker2", "partition", cut=False)
    assert "sleep 4711" not in processes_on(fragile, "deeplearning-worker2")


def test_a_job_starts_again_on_the_roster_after_its_node_died(fragile):
    job_id = start(fragile, "--restarts", "2")
    killed_at = break_node(fragile, "deeplearning-worker3", "kill")
    done = fragile.phalanx("logs", "-f", job_id, check=False)
    job = job_of(fragile, job_id)
    assert (done.returncode, job["state"], job["attempt"]) == (0, "succeeded", 1), job
    assert 2 <= done.stdout.count("started again") <= 3
    assert job["ended_at"] - killed_at < 60
