"""Nodes die, networks are cut, runners are killed: jobs end in time with a reason, and restart if they may."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from counting import KEPT_EVERY
from local_clouds import api, break_on_purpose
from processes import process_file
from terminals import Terminal, a_cluster

pytestmark = pytest.mark.cluster

SPEC = "name: deaths\ncloud: local\nnodes: 3\nmin: 2\ntype: c5.large\nshared: /efs\nkeep: no\ncapacity: spot\n"
# How long any of this may take on a busy machine. `make soak` measures how long it takes.
PATIENCE_S = 300.0
FENCED = "heard nothing from the runner for 30 s"
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
    deadline = time.monotonic() + PATIENCE_S
    while len(mortal.phalanx("exec", "--", "echo in", check=False).stdout.splitlines()) < 3:
        assert time.monotonic() < deadline, mortal.phalanx("nodes").stdout
    return mortal


def start(cluster: Terminal, *options: str) -> str:
    """Start a detached job that prints and waits; return its id."""
    arguments = ("run", "--detach", "--launcher", "exec", *options, "--", "sh", "work.sh")
    job_id = cluster.phalanx(*arguments).stdout.strip()
    cluster.wait_until_printed(job_id, "ready", times=3)
    return job_id


def instance_of(cluster: Terminal, name: str) -> str:
    """Return the id of a node's instance."""
    nodes = json.loads(cluster.phalanx("nodes", "--json").stdout)
    return next(node["instance_id"] for node in nodes if node["name"] == name)


def state_of(cluster: Terminal, job_id: str) -> dict[str, Any]:
    """Return the job's state.json, which only its runner and starters have written."""
    return json.loads(cluster.on("head", f"cat /efs/.phalanx/jobs/{job_id}/state.json"))


def reported(job: dict[str, Any]) -> str:
    """Describe a job for an assertion: pytest truncates dictionaries."""
    attempts = [f"{number}: {attempt['message'] or 'went well'}" for number, attempt in enumerate(job["attempts"])]
    verdicts = [f"{node['node']}: {node['message'] or 'clean'}" for node in job["nodes"]]
    return "\n".join([f"{job['state']}: {job['message']}", "attempts", *attempts, "nodes", *verdicts])


def wait_for_end(cluster: Terminal, job_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while not (job := state_of(cluster, job_id))["ended_at"]:
        assert time.monotonic() < deadline, reported(job)
        time.sleep(1)  # each poll takes a fifth of a second of CPU time
    return job


def sleepers(cluster: Terminal, job_id: str) -> set[int]:
    """Find the job's `sleep`s on all nodes from this machine, because a partitioned node can't be asked."""
    mark = f"PHALANX_JOB={job_id}".encode()
    return {
        pid
        for pid, _started in cluster.local_cloud_processes()
        if process_file(pid, "comm") == b"sleep\n" and mark in process_file(pid, "environ").split(b"\0")
    }


def test_a_killed_runner_is_reported_and_its_job_ended_without_any_query(fragile):
    job_id = start(fragile)
    state = f"/efs/.phalanx/jobs/{job_id}/state.json"
    pid = 'python3 -c \'import json, sys; print(json.load(open(sys.argv[1]))["runner"]["pid"])\''
    fragile.on("head", f"kill -9 $({pid} {state})")
    job = wait_for_end(fragile, job_id)
    assert (job["state"], job["message"][:21]) == ("lost", "the job's runner died"), reported(job)
    assert FENCED not in reported(job), "a message is quicker"
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
    fragile.on("head", f"pkill -STOP -f 'runner.pyz submit .*{job_id}'")
    deadline = time.monotonic() + PATIENCE_S
    while left := sleepers(fragile, job_id):
        assert time.monotonic() < deadline, f"{len(left)} of 3 nodes have not fenced themselves"
        time.sleep(1)
    fragile.on("head", f"pkill -CONT -f 'runner.pyz submit .*{job_id}'")
    job = wait_for_end(fragile, job_id)
    assert FENCED in job["message"], reported(job)


def test_a_silent_node_is_lost_and_keeps_nothing_of_the_job(fragile):
    job_id = start(fragile)
    cut = instance_of(fragile, "deeplearning-worker2")
    break_on_purpose(fragile, partition={"instance_id": cut, "cut": True})
    job = wait_for_end(fragile, job_id)
    assert job["message"] == "deeplearning-worker2 was lost: no sign of life for 9 s", reported(job)
    assert job["tail"] == ["ready"]
    assert [node["clean"] for node in job["nodes"]] == [True, False, True], reported(job)
    assert job["nodes"][1]["message"].startswith("could not be checked: ")
    deadline = time.monotonic() + PATIENCE_S
    while sleepers(fragile, job_id):
        assert time.monotonic() < deadline, "the node that was cut off keeps the job's processes"
        time.sleep(1)
    # On a busy machine it may have been replaced by now.
    with contextlib.suppress(HTTPError):
        break_on_purpose(fragile, partition={"instance_id": cut, "cut": False})


def test_a_job_starts_again_on_the_roster_after_its_node_died(fragile):
    job_id = start(fragile, "--restarts", "2")
    break_on_purpose(fragile, kill={"instance_id": instance_of(fragile, "deeplearning-worker3")})
    done = fragile.phalanx("logs", "-f", job_id, check=False)
    job = state_of(fragile, job_id)
    assert (done.returncode, job["state"], job["attempt"]) == (0, "succeeded", 1), reported(job)
    assert 2 <= done.stdout.count("started again") <= 3, reported(job)
    assert "deeplearning-worker3 was lost" in job["attempts"][0]["message"], reported(job)


@pytest.fixture
def counted(fragile: Terminal, tmp_path: Path) -> Iterator[Path]:
    """Run an elastic job of two or three nodes that counts its steps (see counting.py); yield its output file."""
    shutil.copy(Path(__file__).with_name("counting.py"), tmp_path)
    arguments = ("run", "--name", "counts", "--directory", str(tmp_path), "--launcher", "torchrun", "--nodes", "2:3")
    shown = tmp_path / "shown"
    with shown.open("w") as file:
        typed = fragile.start(*arguments, "-N", "1", "--", "counting.py", "/efs/.counting", output=file)
    # Otherwise the new node may join before the others have continued without the dead one.
    break_on_purpose(fragile, capacity={"c5.large": 2})
    yield shown
    break_on_purpose(fragile, capacity={"c5.large": None})
    fragile.phalanx("stop", "counts", check=False)
    typed.wait(timeout=PATIENCE_S)


def wait_for_steps(shown: Path, pattern: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not re.search(pattern, text := shown.read_text(), re.DOTALL):
        rest = re.sub(r"\[0\] step \d+\n", "", text)
        assert "process of it is left" not in text and time.monotonic() < deadline, f"{pattern!r} never came\n{rest}"
        time.sleep(0.1)


def test_an_elastic_job_continues_with_the_remaining_nodes_and_grows_again_from_its_checkpoint(fragile, counted):
    beyond = r"step \d*[1-9]\d\b"
    wait_for_steps(counted, f"from 0 with 3.*{beyond}")
    break_on_purpose(fragile, kill={"instance_id": instance_of(fragile, "deeplearning-worker3")})
    wait_for_steps(counted, "from .* with 2.*step")
    break_on_purpose(fragile, capacity={"c5.large": None})
    wait_for_steps(counted, "with 2.*from .* with 3.*step")
    fragile.on("head", "touch /efs/.counting/enough")
    wait_for_steps(counted, r"job \S+ succeeded")
    last = 0
    for word, number in re.findall(r"(from|step) (\d+)", counted.read_text()):
        # The output of a dead rank's last steps may be lost.
        assert word == "step" or int(number) >= last - KEPT_EVERY, counted.read_text()
        last = int(number)


def test_a_spot_notice_has_the_ranks_save_to_s3_and_the_job_goes_on_where_nodes_are_left(fragile):
    s3 = bucket_of_jobs(fragile)
    started = ("--launcher", "exec", "-N", "1", "--checkpoint", "s3://deaths/spot", "--restarts", "1")
    job_id = fragile.phalanx("run", "--detach", *started, "--", "sh", "-c", "python3 saves.py; exit $?").stdout.strip()
    fragile.wait_until_printed(job_id, "ready", times=3)
    fragile.phalanx("local", "interrupt", "worker3", "--notice", "10m")
    fragile.wait_until_printed(job_id, "saved", times=3)
    (leaving,) = json.loads(fragile.phalanx("status", "--json").stdout)["leaving"]
    assert leaving["name"] == "deeplearning-worker3"
    assert leaving["reason"].startswith("AWS takes back this spot instance at 20")
    assert f"leaving: {leaving['reason']}" in fragile.phalanx("nodes").stdout
    assert len(fragile.phalanx("run", "-N", "1", "--", "hostname").stdout.splitlines()) == 2
    wait_for_copy(s3)
    break_on_purpose(fragile, kill={"instance_id": instance_of(fragile, "deeplearning-worker3")})
    job = wait_for_end(fragile, job_id)
    assert job["state"] == "succeeded", reported(job)
    assert f"deeplearning-worker3 leaves ({leaving['reason']}): deeplearning-worker3 was lost" in reported(job)
    assert "goes on from 7" in fragile.phalanx("logs", job_id).stdout
    # As on a new cluster of that name.
    fragile.on("head", "rm -r /efs/.phalanx/s3")
    again = fragile.phalanx("run", "--resume", job_id).stdout
    assert "from s3://deaths/spot/, by job" in again and again.count("goes on from 7") >= 2


def bucket_of_jobs(cluster: Terminal) -> Any:
    """Make the bucket `deaths`, which jobs may use; return a client."""
    iam, s3 = api(cluster, "iam"), api(cluster, "s3")
    (role,) = [one["RoleName"] for one in iam.list_roles()["Roles"] if "JobRole" in one["RoleName"]]
    allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": ["arn:aws:s3:::deaths", "arn:aws:s3:::deaths/*"]}
    document = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    iam.put_role_policy(RoleName=role, PolicyName="deaths", PolicyDocument=document)
    s3.create_bucket(Bucket="deaths")
    return s3


def wait_for_copy(s3: Any) -> None:
    """Wait until what the ranks saved is in S3."""
    deadline = time.monotonic() + PATIENCE_S
    while "step" not in json.loads(s3.get_object(Bucket="deaths", Key="spot/checkpoint.json")["Body"].read())["files"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_an_instance_on_demand_is_never_interrupted(fragile):
    refused = fragile.phalanx("local", "interrupt", "worker1", check=False)
    assert refused.returncode and "is no spot instance" in refused.stderr
    assert "`capacity: spot`" in refused.stderr
