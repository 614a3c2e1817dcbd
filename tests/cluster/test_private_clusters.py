"""A cluster without public addresses: its endpoints, its logins, and what happens where one endpoint is missing."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import WaiterError
from local_clouds import api, bad_weather, create_as_the_console, endpoint
from needed_rights import not_needed, rights
from own_vpc import ClosedVpc
from terminals import PHALANX, Terminal, a_cluster
from verdicts import is_gone

from localcloud.network import dial
from phalanx.connection import connect
from phalanx.plan.vpc_endpoints import NEEDED
from phalanx.ssh.remote import close_all

pytestmark = pytest.mark.cluster
SPEC = (
    "name: private\ncloud: local\nnodes: 2\nmin: 2\ntype: c5.large\nkeep: no\nnode_timeout: 4m\n"
    "network: {access: private}\n"
)
SOON_S = 300.0
# What the AWS CLI does, as far as phalanx sees it: it takes exactly these words, and connects its standard streams.
AWS = """\
#!{python}
import os, socket, subprocess, sys, threading
open({record!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
words = sys.argv[1:]
assert words[:2] == ["ssm", "start-session"] and len(words) == 10, words
given = dict(zip(words[2::2], words[3::2]))
assert given["--document-name"] == "AWS-StartSSHSession" and given["--parameters"] == "portNumber=22", words
assert given["--region"] == "us-east-1", words
ours, theirs = socket.socketpair()
asked = subprocess.run([sys.executable, {dial!r}, {sock!r}, "ssm/" + given["--target"], "22"], stdout=theirs.fileno())
if asked.returncode:
    sys.exit("An error occurred (TargetNotConnected) when calling the StartSession operation: not connected.")
node = socket.socket(fileno=socket.recv_fds(ours, 16, 1)[1][0])
def send():
    while data := os.read(0, 65536):
        node.sendall(data)
    node.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while data := node.recv(65536):
    os.write(1, data)
"""


@pytest.fixture(scope="module")
def private() -> Iterator[Terminal]:
    with a_cluster(SPEC) as terminal:
        yield terminal
        ec2, own = api(terminal, "ec2"), made(terminal)
        present = [one["VpcEndpointId"] for one in ec2.describe_vpc_endpoints()["VpcEndpoints"]]
        # What a test has put in the place of one of the stack's own would keep the VPC.
        if others := [one for one in present if one not in own.values()]:
            ec2.delete_vpc_endpoints(VpcEndpointIds=others)


def wait(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < deadline, f"waited {SOON_S:.0f} s for {what}"
        time.sleep(0.3)


def made(terminal: Terminal) -> dict[str, str]:
    found = api(terminal, "cloudformation").describe_stack_resources(StackName="private")
    return {one["LogicalResourceId"]: one["PhysicalResourceId"] for one in found["StackResources"]}


def log_out(terminal: Terminal) -> None:
    for config in terminal.state.glob("clusters/*/ssh_config"):
        close_all(config)


def test_nothing_of_it_is_public_and_nothing_reaches_the_web(private: Terminal):
    ec2, vpc = api(private, "ec2"), made(private)["Vpc"]
    here = [{"Name": "vpc-id", "Values": [vpc]}, {"Name": "instance-state-name", "Values": ["running"]}]
    instances = [one for r in ec2.describe_instances(Filters=here)["Reservations"] for one in r["Instances"]]
    assert len(instances) == 2
    assert not [one["PublicIpAddress"] for one in instances if one.get("PublicIpAddress")]
    assert not ec2.describe_addresses()["Addresses"]
    look = "timeout 3 bash -c '</dev/tcp/198.51.100.7/443' || echo no web"
    assert [private.on(node, look) for node in ("head", "worker2")] == ["no web\n"] * 2
    assert private.on("head", "echo $SSH_CONNECTION").startswith("127.0.0.1 ")


def test_jobs_run_and_files_travel(private: Terminal, tmp_path: Path):
    (tmp_path / "data.txt").write_text("carried\n")
    private.phalanx("put", str(tmp_path / "data.txt"), "/efs/data.txt")
    done = private.phalanx("run", "--launcher", "mpi", "--", "cat", "/efs/data.txt")
    assert done.stdout.count("carried") == 4


def test_the_head_needs_each_right_of_its_sessions_and_nothing_else_of_systems_manager(private: Terminal):
    assert private.on("head", "echo here") == "here\n"
    _, statements, used = rights(private, "private-HeadRole-")
    sessions = [one for one in statements if "ssm" in str(one["Action"])]
    assert {action for one in sessions for action in one["Action"]} == {
        "ssm:UpdateInstanceInformation",
        *(f"ssmmessages:{verb}{kind}Channel" for verb in ("Create", "Open") for kind in ("Control", "Data")),
    }
    assert not_needed(sessions, used) == []


def test_nobody_is_allowed_in_from_a_network(private: Terminal):
    refused = private.phalanx("allow", "203.0.113.0/24", check=False)
    assert "no public address" in refused.stderr
    assert "ssm:StartSession" in refused.stderr


@pytest.fixture
def aws(private: Terminal, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Let ssh reach the cluster as on AWS, with a stand-in for the AWS CLI; yield the environment with it."""
    tools = tmp_path / "tools"
    tools.mkdir()
    sock = endpoint(private)["dial"]
    text = AWS.format(python=sys.executable, record=str(tmp_path / "asked"), dial=dial.__file__, sock=sock)
    for name, content in (("aws", text), ("session-manager-plugin", "#!/bin/sh\n")):
        (tools / name).write_text(content)
        (tools / name).chmod(0o755)
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "PHALANX_STATE_DIR": str(private.state)}
    (config,) = private.state.glob("clusters/*/ssh_config")
    before = config.read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", env["PATH"])
        (option,) = connect("aws", "us-east-1").site.ssh_route(by_session=True)
    lines = [line for line in before.splitlines() if "ProxyUseFdpass" not in line]
    config.write_text("\n".join(f"    {option}" if "ProxyCommand" in line else line for line in lines) + "\n")
    close_all(config)
    yield env
    close_all(config)
    config.write_text(before)


def run(terminal: Terminal, env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PHALANX), *words],
        cwd=terminal.directory,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_jobs_run_through_the_aws_cli_as_on_aws(private: Terminal, aws: dict[str, str], tmp_path: Path):
    head = json.loads(private.phalanx("status", "--json").stdout)["head_address"]
    done = run(private, aws, "run", "--launcher", "mpi", "--", "hostname")
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.split()[1::2])) == 2
    asked = f"ssm start-session --region us-east-1 --target {head} --document-name AWS-StartSSHSession"
    assert set((tmp_path / "asked").read_text().splitlines()) == {f"{asked} --parameters portNumber=22"}
    (tmp_path / "sent").write_text("there and back\n")
    assert run(private, aws, "put", str(tmp_path / "sent"), "/efs/sent").returncode == 0
    assert run(private, aws, "ssh", "worker2", "--", "cat /efs/sent").stdout == "there and back\n"
    # The authority is still what makes a node believed.
    (known,) = private.state.glob("clusters/*/known_hosts")
    trusted = known.read_text()
    log_out(private)
    key = subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    assert key.returncode == 0
    known.write_text(f"@cert-authority * {(tmp_path / 'other.pub').read_text()}")
    assert run(private, aws, "ssh", "--", "true").returncode == 0, "phalanx reads the authority from the table again"
    assert known.read_text() == trusted


def test_a_machine_without_the_aws_cli_is_told_so_in_one_message(private: Terminal, aws: dict[str, str]):
    tools = Path(aws["PATH"].partition(":")[0])
    (tools / "session-manager-plugin").unlink()
    # Only what ssh and phalanx themselves need is on the path then.
    done = run(private, {**aws, "PATH": f"{tools}:{_without('session-manager-plugin')}"}, "ssh", "--", "true")
    assert done.returncode != 0
    assert "`session-manager-plugin` is not installed" in done.stderr
    assert "Install it: https://docs.aws.amazon.com/systems-manager" in done.stderr
    assert "Traceback" not in done.stderr


def _without(program: str) -> str:
    return ":".join(one for one in os.environ["PATH"].split(":") if not Path(one, program).exists())


def test_without_its_endpoint_nobody_logs_in_and_why_names_it(private: Terminal):
    ec2, ids = api(private, "ec2"), made(private)
    taken = ec2.describe_vpc_endpoints(VpcEndpointIds=[ids["SsmmessagesEndpoint"]])["VpcEndpoints"][0]
    log_out(private)
    ec2.delete_vpc_endpoints(VpcEndpointIds=[taken["VpcEndpointId"]])
    try:
        refused = private.phalanx("ssh", "--", "true", check=False)
        assert "AWS Systems Manager" in refused.stderr
        why = private.phalanx("why").stdout
        assert "a VPC endpoint is missing" in why
        assert "no endpoint for ssmmessages" in why
    finally:
        again = {name: taken[name] for name in ("VpcId", "ServiceName", "SubnetIds", "VpcEndpointType")}
        groups = [group["GroupId"] for group in taken["Groups"]]
        ec2.create_vpc_endpoint(**again, SecurityGroupIds=groups, PrivateDnsEnabled=True)
    wait(lambda: private.phalanx("ssh", "--", "true", check=False).returncode == 0, "the login to work again")
    # Other tests on this cluster end nodes, which it still tells of.
    assert "endpoint" not in private.phalanx("why").stdout


def test_without_an_endpoint_that_nodes_need_there_is_no_cluster_and_why_names_it(private: Terminal):
    """tests/parts/test_needed_endpoints.py removes each of them."""
    name, title = "without-sqs", "SqsEndpoint"
    terminal = Terminal(private.state.parent / name, private.state)
    terminal.directory.mkdir()
    spec = SPEC.replace("name: private", f"name: {name}").replace("4m", "8s")
    (terminal.directory / "phalanx.yaml").write_text(spec)
    # For the agent's times of a rehearsal; calls that nobody answers are repeated for a minute otherwise.
    with bad_weather(private, 1, "packages"):
        document = json.loads(terminal.phalanx("template").stdout)
    del document["Resources"][title]
    document["Resources"]["WorkersGroup"]["DependsOn"].remove(title)
    stacks = api(private, "cloudformation")
    create_as_the_console(private, name, json.dumps(document), OnFailure="DO_NOTHING")
    try:
        with pytest.raises(WaiterError):
            stacks.get_waiter("stack_create_complete").wait(
                StackName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 300}
            )
        shown = terminal.phalanx("why", "-c", name).stdout
        assert "a VPC endpoint is missing" in shown
        assert "the VPC has no endpoint for sqs, which nodes call" in shown
        assert "sqs did not answer" in shown, shown
    finally:
        stacks.delete_stack(StackName=name)
        stacks.get_waiter("stack_delete_complete").wait(StackName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 300})


def test_in_an_existing_vpc_the_stack_makes_only_the_endpoints_that_are_missing(private: Terminal):
    """The user's own serve its nodes: one beside each of the two services of a login, and S3 for the head's subnet."""
    own = ClosedVpc(api(private, "ec2"), "172.21", prefix=26)
    own.gateway_endpoint("s3", own.table)
    theirs = {one: own.interface_endpoint(one, "172.21.0.0/16") for one in ("sqs", "ssm")}
    before, place = own.contents(), {"access": "private", "head_subnet": own.head, "worker_subnet": own.workers}
    inside = Terminal(private.state.parent / "inside", private.state)
    inside.directory.mkdir()
    (inside.directory / "phalanx.yaml").write_text(
        SPEC.replace("name: private", "name: inside").replace("{access: private}", json.dumps(place))
    )
    inside.phalanx("up")
    made = {one["VpcEndpointId"]: one for one in own.ec2.describe_vpc_endpoints()["VpcEndpoints"]}
    new = [made[one] for one in set(own.contents()["vpc_endpoints"]) - set(before["vpc_endpoints"])]
    assert {one["ServiceName"].rpartition(".")[2] for one in new} == {*NEEDED} - {"sqs", "ssm"}
    assert [one["RouteTableIds"] for one in new if one["ServiceName"].endswith(".s3")] == [[own.own_table]]
    addresses = inside.phalanx("run", "-c", "inside", "--", "hostname").stdout
    assert "ip-172-21-0-" in addresses and "ip-172-21-1-" in addresses
    planned = inside.phalanx("plan").stdout
    assert "yours for sqs, ssm" in planned, "those of the stack are not taken for the user's"
    own.ec2.delete_vpc_endpoints(VpcEndpointIds=[theirs["sqs"]])
    assert "no endpoint for sqs, which nodes call" in inside.phalanx("why", "-c", "inside").stdout
    assert is_gone(inside.phalanx("down", "-c", "inside", "--yes").stdout)
    own.endpoints.remove(theirs["sqs"])
    assert set(own.contents()["vpc_endpoints"]) == set(own.endpoints)
    assert own.contents()["routes"] == before["routes"]
    own.delete()


def test_a_new_head_is_found_by_the_id_of_its_instance(private: Terminal):
    before = json.loads(private.phalanx("status", "--json").stdout)["head_address"]
    api(private, "ec2").terminate_instances(InstanceIds=[before])
    name = shlex.quote(str(private.state / "clusters/private/cluster.json"))
    wait(lambda: private.phalanx("ssh", "--", "true", check=False).returncode == 0, f"a new head ({name})")
    after: dict[str, Any] = json.loads(private.phalanx("status", "--json").stdout)
    assert after["head_address"].startswith("i-")
    assert after["head_address"] != before
    assert f"the head deeplearning-worker1 ({before})" in private.phalanx("why").stdout
    assert f"HostName {after['head_address']}" in (private.state / "clusters/private/ssh_hosts").read_text()
