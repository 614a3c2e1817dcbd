"""Nodes die, networks are cut, runners are killed: jobs end in time with a reason, and restart if they may."""

from __future__ import annotations

import json
import re
import shutil
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from counting import KEPT_EVERY

from conftest import Terminal, a_cluster, process_file

pytestmark = pytest.mark.cluster

SPEC = "name: deaths\ncloud: local\nnodes: 3\nmin: 2\ntype: c5.large\nshared: /efs\nkeep: no\ncapacity: spot\n"
# How long a job's end may take by the recorded times: after a process's death, and after a node's.
# On a quiet machine they take 2 s and 12 s. Without a message they would take 9 s and, fenced, 30 s.
PROCESS_S, NODE_S = 8.0, 25.0
# A margin for a busy machine.
MOMENT_S = 60.0
FENCED_S = 30.0
NEWCOMER_AFTER_S = 20.0
BEAT_S = 2.0
SAVES = """
import os, signal, sys, time
path = os.environ["PHALANX_CHECKPOINT"] + "/step"
def save(*_):
    with open(path, "w") as file:
        file.write("7")
    print("saved", flush=True)
if os.path.exists(path):
    print("goes on from", open(path).read())
    sys.exit()
signal.signal(signal.SIGUSR1, save)
print("ready", flush=True)
time.sleep(4711)
"""
WORK = "echo ready; sleep $((4711 * (PHALANX_RESTART == 0))); echo started again\n"


@pytest.fixture(scope="module")
def mortal() -> Iterator[Terminal]:
    """A cluster for this module, because its nodes die."""
    with a_cluster(SPEC) as terminal:
        (terminal.directory / "work.sh").write_text(WORK)
        (terminal.directory / "saves.py").write_text(SAVES)
        yield terminal


@pytest.fixture
def fragile(mortal: Terminal) -> Terminal:
    """The same cluster, once all three nodes accept logins again after an earlier test."""
    deadline = time.monotonic() + 120
    while len(mortal.phalanx("exec", "--", "echo in", check=False).stdout.splitlines()) < 3:
        assert time.monotonic() < deadline, mortal.phalanx("nodes").stdout
    return mortal


def start(cluster: Terminal, *options: str) -> str:
    """Start a detached job that prints and waits; return its id."""
    arguments = ("run", "--detach", "--launcher", "exec", *options, "--", "sh", "work.sh")
    job_id = cluster.phalanx(*arguments).stdout.strip()
    cluster.wait_until_printed(job_id, "ready", times=3)
    return job_id


def break_node(cluster: Terminal, name: str, fault: str, **how: Any) -> float:
    """Have the local cloud break a node; return when."""
    nodes = json.loads(cluster.phalanx("nodes", "--json").stdout)
    instance = next(node["instance_id"] for node in nodes if node["name"] == name)
    set_fault(cluster, fault, {"instance_id": instance, **how})
    return time.time()


def set_fault(cluster: Terminal, fault: str, how: Any) -> None:
    endpoint = json.loads((cluster.state / "local" / "endpoint.json").read_text())
    request = urllib.request.Request(
        endpoint["url"] + "/_localcloud/faults",
        method="POST",
        data=json.dumps({fault: how}).encode(),
        headers={"X-Localcloud-Key": endpoint["secret_access_key"]},
    )
    urllib.request.urlopen(request, timeout=60).close()


def state_of(cluster: Terminal, job_id: str) -> dict[str, Any]:
    """Return the job's state.json, which only its runner and starters have written."""
    return json.loads(cluster.on("head", f"cat /efs/.phalanx/jobs/{job_id}/state.json"))


def reported(job: dict[str, Any]) -> str:
    """Describe a job for an assertion: pytest truncates dictionaries."""
    attempts = [f"{number}: {attempt['message'] or 'went well'}" for number, attempt in enumerate(job["attempts"])]
    verdicts = [f"{node['node']}: {node['message'] or 'clean'}" for node in job["nodes"]]
    return "\n".join([f"{job['state']}: {job['message']}", "attempts", *attempts, "nodes", *verdicts])


def wait_for_end(cluster: Terminal, job_id: str, timeout_s: float = 120) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while not (job := state_of(cluster, job_id))["ended_at"]:
        assert time.monotonic() < deadline, reported(job)
        time.sleep(1)  # each poll takes a fifth of a second of CPU time
    return job


def sleepers(cluster: Terminal, job_id: str) -> set[int]:
    """Find the job's `sleep`s on all nodes from this machine, because a partitioned node can't be asked."""
    mark = f"PHALANX_JOB={job_id}".encode()
    return {
        pid
        for pid in cluster.local_cloud_pids()
        if process_file(pid, "comm") == b"sleep\n" and mark in process_file(pid, "environ").split(b"\0")
    }


def test_a_killed_runner_is_reported_and_its_job_ended_without_any_query(fragile):
    job_id = start(fragile)
    state = f"/efs/.phalanx/jobs/{job_id}/state.json"
    pid = 'python3 -c \'import json, sys; print(json.load(open(sys.argv[1]))["runner"]["pid"])\''
    killed_at = float(fragile.on("head", f"kill -9 $({pid} {state}); date +%s.%N"))
    job = wait_for_end(fragile, job_id)
    assert (job["state"], job["message"][:21]) == ("lost", "the job's runner died"), reported(job)
    assert job["ended_at"] - killed_at < PROCESS_S, reported(job)
    assert [node["clean"] for node in job["nodes"]] == [True] * 3, reported(job)
    assert fragile.phalanx("logs", "-f", job_id, check=False).returncode == 1


def test_a_restart_takes_over_from_a_killed_runner(fragile):
    job_id = start(fragile, "--restarts", "1")
    fragile.on("head", f"pkill -9 -f 'runner.pyz submit .*{job_id}'", check=False)
    done = fragile.phalanx("logs", "-f", job_id, check=False)
    job = state_of(fragile, job_id)
    assert (done.returncode, done.stdout.count("started again")) == (0, 3), reported(job)
    assert fragile.phalanx("logs", job_id, "--attempt", "0").stdout.count("ready") == 3


def test_nodes_that_do_not_hear_from_the_runner_end_their_processes(fragile):
    job_id = start(fragile)
    assert len(sleepers(fragile, job_id)) == 3
    frozen_at = time.time()
    fragile.on("head", f"pkill -STOP -f 'runner.pyz submit .*{job_id}'")
    deadline = time.monotonic() + FENCED_S + MOMENT_S
    while left := sleepers(fragile, job_id):
        assert time.monotonic() < deadline, f"{len(left)} of 3 nodes have not fenced themselves"
        time.sleep(1)
    assert time.time() - frozen_at > FENCED_S - BEAT_S
    fragile.on("head", f"pkill -CONT -f 'runner.pyz submit .*{job_id}'")
    job = wait_for_end(fragile, job_id)
    assert "heard nothing from the runner for 30 s" in job["message"], reported(job)


def test_a_silent_node_is_lost_and_keeps_nothing_of_the_job(fragile):
    job_id = start(fragile)
    cut_at = break_node(fragile, "deeplearning-worker2", "partition", cut=True)
    job = wait_for_end(fragile, job_id)
    assert job["message"] == "deeplearning-worker2 was lost: no sign of life for 9 s", reported(job)
    assert job["tail"] == ["ready"]
    assert job["ended_at"] - cut_at < NODE_S, reported(job)
    assert [node["clean"] for node in job["nodes"]] == [True, False, True], reported(job)
    assert job["nodes"][1]["message"].startswith("unverified, fenced: ")
    deadline = time.monotonic() + FENCED_S + MOMENT_S
    while sleepers(fragile, job_id):
        assert time.monotonic() < deadline, "the node that was cut off keeps the job's processes"
        time.sleep(1)
    break_node(fragile, "deeplearning-worker2", "partition", cut=False)


def test_a_job_starts_again_on_the_roster_after_its_node_died(fragile):
    job_id = start(fragile, "--restarts", "2")
    killed_at = break_node(fragile, "deeplearning-worker3", "kill")
    done = fragile.phalanx("logs", "-f", job_id, check=False)
    job = state_of(fragile, job_id)
    assert (done.returncode, job["state"], job["attempt"]) == (0, "succeeded", 1), reported(job)
    assert 2 <= done.stdout.count("started again") <= 3, reported(job)
    assert job["started_at"] + job["attempts"][0]["ran_s"] - killed_at < NODE_S, reported(job)


@pytest.fixture
def counted(fragile: Terminal, tmp_path: Path) -> Iterator[Path]:
    """Run an elastic job of two or three nodes that counts its steps (see counting.py); yield its output file."""
    shutil.copy(Path(__file__).with_name("counting.py"), tmp_path)
    arguments = ("run", "--name", "counts", "--directory", str(tmp_path), "--launcher", "torchrun", "--nodes", "2:3")
    shown = tmp_path / "shown"
    with shown.open("w") as file:
        typed = fragile.start(*arguments, "-N", "1", "--", "counting.py", "/efs/.counting", output=file)
    # Otherwise the new node joins before the others have continued without the dead one.
    set_fault(fragile, "boot_delay_s", NEWCOMER_AFTER_S)
    yield shown
    set_fault(fragile, "boot_delay_s", 0)
    fragile.phalanx("stop", "counts", check=False)
    typed.wait(timeout=180)


def wait_for_steps(shown: Path, pattern: str) -> None:
    deadline = time.monotonic() + 150
    while not re.search(pattern, text := shown.read_text(), re.DOTALL):
        rest = re.sub(r"\[0\] step \d+\n", "", text)
        assert "\njob " not in text and time.monotonic() < deadline, f"{pattern!r} never came\n{rest}"
        time.sleep(0.1)


def test_an_elastic_job_continues_with_the_remaining_nodes_and_grows_again_from_its_checkpoint(fragile, counted):
    beyond = r"step \d*[1-9]\d\b"
    wait_for_steps(counted, f"from 0 with 3.*{beyond}")
    break_node(fragile, "deeplearning-worker3", "kill")
    wait_for_steps(counted, "from .* with 2.*step")
    wait_for_steps(counted, "with 2.*from .* with 3.*step")
    fragile.on("head", "touch /efs/.counting/enough")
    wait_for_steps(counted, r"job \S+ succeeded")
    last = 0
    for word, number in re.findall(r"(from|step) (\d+)", counted.read_text()):
        # The output of a dead rank's last steps may be lost.
        assert word == "step" or int(number) >= last - KEPT_EVERY, counted.read_text()
        last = int(number)


def test_a_spot_notice_has_the_ranks_save_and_the_job_goes_on_where_nodes_are_left(fragile):
    started = ("--launcher", "exec", "-N", "1", "--checkpoint", "spot", "--restarts", "1")
    job_id = fragile.phalanx("run", "--detach", *started, "--", "sh", "-c", "python3 saves.py; exit $?").stdout.strip()
    fragile.wait_until_printed(job_id, "ready", times=3)
    fragile.phalanx("local", "interrupt", "worker3", "--notice", "10m")
    fragile.wait_until_printed(job_id, "saved", times=3)
    (leaving,) = json.loads(fragile.phalanx("status", "--json").stdout)["leaving"]
    assert leaving["name"] == "deeplearning-worker3"
    assert leaving["reason"].startswith("AWS takes back this spot instance at 20")
    assert f"leaving: {leaving['reason']}" in fragile.phalanx("nodes").stdout
    assert len(fragile.phalanx("run", "-N", "1", "--", "hostname").stdout.splitlines()) == 2
    break_node(fragile, "deeplearning-worker3", "kill")
    job = wait_for_end(fragile, job_id)
    assert job["state"] == "succeeded", reported(job)
    assert f"deeplearning-worker3 leaves ({leaving['reason']}): deeplearning-worker3 was lost" in reported(job)
    assert "goes on from 7" in fragile.phalanx("logs", job_id).stdout


def test_an_instance_on_demand_is_never_interrupted(fragile):
    refused = fragile.phalanx("local", "interrupt", "worker1", check=False)
    assert refused.returncode and "is no spot instance" in refused.stderr
    assert "`capacity: spot`" in refused.stderr
