"""Clusters that come up and go down on this machine: interrupted, killed, refused, too small, failing at boot."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
from error_codes import assert_refused
from local_clouds import api, break_on_purpose, endpoint
from terminals import Terminal, a_terminal, assert_nothing_is_left
from verdicts import is_gone

pytestmark = pytest.mark.cluster

SPEC = "name: {name}\ncloud: local\nnodes: {nodes}\nmin: {minimum}\ntype: {type}\nkeep: no\n"


def spec(name, nodes=2, minimum=2, type="c5.large", more=""):
    return SPEC.format(name=name, nodes=nodes, minimum=minimum, type=type) + more


@pytest.fixture
def terminal():
    """A user with a separate local cloud, which must be gone at the end."""
    with a_terminal(spec("passing")) as terminal:
        yield terminal


@pytest.fixture
def beside(cluster):
    """Another directory with another phalanx.yaml, in the same local cloud as the running cluster."""
    return partial(cluster.beside, "beside")


def stacks(terminal):
    return {stack["name"] for stack in json.loads(terminal.phalanx("local", "status", "--json").stdout)["stacks"]}


def start_up(terminal):
    """Start `phalanx up` in the background and wait until its stack is being created."""
    process = terminal.start("up", errors=subprocess.PIPE)
    record = terminal.state / "clusters/passing/cluster.json"
    deadline = time.monotonic() + 300
    while not (record.exists() and json.loads(record.read_text())["stack_id"]):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    return process


def test_status_nodes_and_ssh_show_the_same_cluster(cluster):
    status = json.loads(cluster.phalanx("status", "--json").stdout)
    nodes = json.loads(cluster.phalanx("nodes", "--json").stdout)
    assert status["state"] == "CREATE_COMPLETE"
    assert [node["name"] for node in status["nodes"]] == [node["name"] for node in nodes]
    for node in nodes:
        hostname = cluster.on(node["name"], "hostname").strip()
        assert hostname == f"ip-{node['address'].replace('.', '-')}"


def test_ssh_ends_with_the_command_s_status(cluster):
    assert cluster.phalanx("ssh", "worker2", "--", "exit 7", check=False).returncode == 7


def test_an_unknown_node_is_reported_with_the_known_ones(cluster):
    done = cluster.phalanx("ssh", "worker9", check=False)
    assert done.returncode == 2
    assert "deeplearning-worker4" in done.stderr


def test_up_again_changes_nothing(cluster):
    before = json.loads(cluster.phalanx("status", "--json").stdout)["nodes"]
    assert "is up already" in cluster.phalanx("up").stdout
    assert json.loads(cluster.phalanx("status", "--json").stdout)["nodes"] == before


def test_the_local_cloud_does_not_stop_under_a_cluster(cluster):
    done = cluster.phalanx("local", "stop", check=False)
    assert done.returncode == 5
    assert "phalanx down" in done.stderr


def test_a_plan_for_aws_asks_the_api(cluster, tmp_path):
    """The local cloud answers in AWS's place, as it does for every AWS tool."""
    lines = cluster.phalanx("local", "env").stdout.splitlines()
    keys = dict(line.removeprefix("export ").split("=", 1) for line in lines if line.startswith("export "))
    text = "name: far\ncloud: aws\nnodes: 2\ntype: t3.small\nssh_from: 203.0.113.7/32\n"
    (tmp_path / "phalanx.yaml").write_text(text)
    with Terminal(tmp_path, cluster.state).start("plan", **keys) as plan:
        shown, _ = plan.communicate(timeout=300)
    assert plan.returncode == 0, shown
    assert "2 × t3.small: the head and 1 worker" in shown
    assert "Ubuntu 24.04 with Python 3.12; without Python's venv, an NFS client, MPI" in shown
    assert "vCPU" in shown
    assert "was not asked" not in shown


def test_ctrl_c_or_a_kill_during_up_leaves_a_stack_that_the_next_up_follows(terminal):
    interrupted = start_up(terminal)
    interrupted.send_signal(signal.SIGINT)
    _, reported = interrupted.communicate(timeout=300)
    assert interrupted.returncode == 130
    assert "`phalanx up` follows it again" in reported
    killed = start_up(terminal)
    killed.kill()
    killed.communicate(timeout=300)
    terminal.phalanx("up")
    assert terminal.on("head", "wc -l < /opt/deeplearning/workers").strip() == "2"
    processes = terminal.local_cloud_processes()
    terminal.phalanx("down", "--yes")
    assert_nothing_is_left(terminal, processes)


def test_an_up_that_was_killed_can_be_taken_down(terminal):
    killed = start_up(terminal)
    killed.kill()
    killed.communicate(timeout=300)
    processes = terminal.local_cloud_processes()
    assert is_gone(terminal.phalanx("down", "--yes").stdout)
    assert_nothing_is_left(terminal, processes)
    assert "Nothing to do" in terminal.phalanx("down", "--yes").stdout


def test_down_finds_the_cluster_without_this_machine_s_record(terminal):
    terminal.phalanx("up")
    processes = terminal.local_cloud_processes()
    shutil.rmtree(terminal.state / "clusters")
    assert is_gone(terminal.phalanx("down", "--yes").stdout)
    assert_nothing_is_left(terminal, processes)


def test_what_down_keeps_comes_back_with_the_name_until_it_is_deleted(terminal):
    """First without a terminal, and then with `keep` in the file."""
    one = spec("passing", nodes=1, minimum=1)
    (terminal.directory / "phalanx.yaml").write_text(one.replace("keep: no", "keep: ask"))
    terminal.phalanx("up")
    processes = terminal.local_cloud_processes()
    terminal.on("head", "echo precious > /efs/data")
    (kept,) = json.loads(terminal.phalanx("down", "--yes", "--json").stdout)["kept"]
    assert_nothing_is_left(terminal, processes)
    assert (Path(kept["place"]) / "data").read_text() == "precious\n"
    assert kept["file_system"] in terminal.phalanx("plan").stdout
    terminal.phalanx("up")
    assert terminal.on("head", "cat /efs/data") == "precious\n"
    assert "kept" not in terminal.phalanx("plan").stdout, "it is in use"
    assert kept["delete"] in terminal.phalanx("down", "--yes").stdout
    terminal.phalanx(*kept["delete"].split()[1:])
    assert not Path(kept["place"]).exists()
    terminal.phalanx("up")
    assert terminal.on("head", "ls -A /efs") == ""
    assert "kept" not in terminal.phalanx("down", "--yes").stdout, "an empty directory is no data"
    assert not list((terminal.state / "local").glob("efs/*"))


def test_a_cluster_whose_local_cloud_was_killed_is_gone_and_says_so(terminal):
    terminal.phalanx("up")
    processes = terminal.local_cloud_processes()
    os.kill(endpoint(terminal)["pid"], signal.SIGKILL)
    for command in (["status"], ["run", "--", "true"], ["ssh"]):
        done = terminal.phalanx(*command, check=False)
        assert (done.returncode, "is gone" in done.stderr) == (6, True), done.stderr
    terminal.phalanx("down", "--yes")
    terminal.phalanx("up")
    processes |= terminal.local_cloud_processes()
    terminal.phalanx("down", "--yes")
    assert_nothing_is_left(terminal, processes)


def test_a_name_in_use_by_another_s_stack_is_refused(beside):
    other = beside(spec("foreign"))
    cloudformation = api(other, "cloudformation")
    template = json.dumps({"Resources": {"Queue": {"Type": "AWS::SQS::Queue"}}})
    cloudformation.create_stack(StackName="foreign", TemplateBody=template)
    try:
        done = other.phalanx("up", "--json", check=False)
        assert_refused(done, "name-taken")
        assert done.returncode == 6
        assert other.phalanx("down", "--yes", check=False).returncode == 6
        assert "foreign" in stacks(other)
    finally:
        cloudformation.delete_stack(StackName="foreign")


def test_below_the_minimum_the_stack_fails_in_aws_s_words_and_nothing_is_left(beside):
    small = beside(spec("small", nodes=4, minimum=4, type="c5.xlarge"))
    break_on_purpose(small, capacity={"c5.xlarge": 2})
    done = small.phalanx("up", check=False)
    assert done.returncode == 4
    assert "capacity" in done.stderr
    assert "small" not in stacks(small)
    assert len(json.loads(small.phalanx("local", "status", "--json").stdout)["nodes"]) == 4


def test_with_the_minimum_the_cluster_is_ready_and_the_missing_node_has_a_reason(beside):
    partial = beside(spec("partial", nodes=3, minimum=1, type="m5.large"))
    break_on_purpose(partial, capacity={"m5.large": 2})
    try:
        assert "missing" in partial.phalanx("up").stdout
        status = json.loads(partial.phalanx("status", "--json").stdout)
        assert (len(status["nodes"]), len(status["missing"])) == (2, 1)
        assert "capacity" in status["missing"][0]["reason"]
    finally:
        partial.phalanx("down", "--yes")


def test_down_takes_policies_off_the_jobs_role_that_a_person_attached(beside):
    granted = beside(spec("granted", nodes=1, minimum=1))
    granted.phalanx("up")
    stack = api(granted, "cloudformation").describe_stacks(StackName="granted")["Stacks"][0]
    role = next(one["OutputValue"] for one in stack["Outputs"] if one["OutputKey"] == "JobRole")
    anything = {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}}
    iam = api(granted, "iam")
    policy = iam.create_policy(PolicyName="mine", PolicyDocument=json.dumps(anything))["Policy"]["Arn"]
    iam.attach_role_policy(RoleName=role, PolicyArn=policy)
    iam.put_role_policy(RoleName=role, PolicyName="also", PolicyDocument=json.dumps(anything))
    shown = granted.phalanx("down", "--yes").stderr
    assert "Cannot delete entity, must " in shown
    assert f"role {role}: detached mine, deleted also" in shown
    assert "granted" not in stacks(granted)
    iam.delete_policy(PolicyArn=policy)


BOUND = (
    *(
        "opt/phalanx",
        "opt/deeplearning",
        "home/phalanx",
        "var/lib/phalanx",
        "var/lib/cloud/instance",
        "etc/ssh/phalanx",
    ),
    *("etc/ssh/sshd_config.d/60-phalanx.conf", "etc/systemd/system/phalanx.service", "home/ubuntu/.bash_history"),
    *("etc/ssh/ssh_host_ed25519_key", "root/.ssh/authorized_keys", "home/ubuntu/.ssh/authorized_keys"),
)


def test_a_node_that_is_cleaned_for_an_image_keeps_what_was_installed_and_nothing_of_its_cluster(beside, cluster):
    refused = cluster.phalanx("image", "clean", "--yes", check=False)
    assert (refused.returncode, "has 4 nodes" in refused.stderr) == (6, True)
    made = beside(spec("image", 1, 1))
    made.phalanx("up")
    made.phalanx("exec", "--sudo", "--", "mkdir /opt/mine; echo ls >/home/ubuntu/.bash_history")
    nodes = json.loads(made.phalanx("nodes", "--json").stdout)
    running = json.loads(made.phalanx("local", "status", "--json").stdout)["nodes"]
    (pid,) = (node["pid"] for node in running if node["instance_id"] == nodes[0]["instance_id"])
    root = Path(f"/proc/{pid}/root")
    assert (root / "etc/ssh/phalanx").exists() and "phalanx" in (root / "etc/fstab").read_text()
    done = made.phalanx("image", "clean", "--yes")
    assert f"aws ec2 create-image --region us-east-1 --instance-id {nodes[0]['instance_id']} --name" in done.stdout
    assert [path for path in BOUND if (root / path).exists()] == []
    texts = {name: (root / "etc" / name).read_text() for name in ("fstab", "hosts", "environment", "passwd", "shadow")}
    # The PATH of an image here leads into this checkout, whatever its name is.
    bare = {name: text.replace(str(Path(__file__).parents[2]), "") for name, text in texts.items()}
    assert [name for name, text in bare.items() if "phalanx" in text or "deeplearning" in text] == []
    assert (root / "etc/machine-id").read_text() == "" and (root / "opt/mine").is_dir()
    made.phalanx("down", "--yes")


def test_a_boot_script_that_fails_is_shown_with_its_output_and_a_long_wait_for_it_too(beside):
    failing = beside(spec("failing", more="boot: |\n  sleep 5\n  echo 'no such package: fnord' >&2\n  exit 9\n"))
    up = failing.start("up")
    shown, _ = up.communicate(timeout=600)
    assert up.returncode == 4
    assert "no such package: fnord" in shown
    assert re.search(r"^waiting for .*\bReady1\b.* \(\d+\.\d s\)$", shown, re.MULTILINE), shown
    logs = list((failing.state / "clusters/failing/boot-logs").glob("*.log"))
    assert any("fnord" in Path(log).read_text() for log in logs)
    assert "failing" not in stacks(failing)


def test_what_is_put_before_the_first_up_is_there_after_a_plan(tmp_path):
    """`plan` stops a local cloud that it needed and that has no stack."""
    with a_terminal("name: data\ncloud: local\nnodes: 1\ndata: {pets: s3://pets}\n") as terminal:
        (terminal.directory / "cat").write_text("meow")
        terminal.phalanx("data", "put", "cat", "s3://pets/")
        terminal.phalanx("plan")
        assert not terminal.local_cloud_processes()
        terminal.phalanx("data", "get", "s3://pets/cat", str(tmp_path))
        assert (tmp_path / "cat").read_text() == "meow"
