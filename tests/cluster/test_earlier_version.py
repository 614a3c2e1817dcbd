"""A cluster that phalanx made on its first day (commit fe8c3d1d): its document, agent, record and ssh_config.

Today's commands use it and take it down.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from local_clouds import api

from conftest import Terminal, a_terminal, assert_nothing_is_left

pytestmark = pytest.mark.cluster

EARLIER = Path(__file__).parents[1] / "data/earlier"
SPEC = "name: earlier\ncloud: local\nnodes: 2\nkeep: no\n"
PARAMETERS = {
    "Nodes": "2",
    "MinNodes": "1",
    "InstanceType": "c5.large",
    "Image": "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id",
    "RootDevice": "/dev/sda1",
    "Zone": "us-east-1a",
    "SshLocation": "127.0.0.1/32",
    "KeyPair": "",
    "Slots": "0",
    "SharedDirectory": "/efs",
    "NodeTimeout": "600",
}


def test_a_cluster_of_an_earlier_version_is_used_and_taken_down():
    with a_terminal(SPEC) as terminal:
        terminal.phalanx("local", "start")
        bring_up(terminal)
        hosts = terminal.phalanx("exec", "hostname").stdout
        assert "ip-10-0-0-4" in hosts and "ip-10-0-16-5" in hosts
        assert "succeeded" in terminal.phalanx("run", "--", "hostname").stderr
        assert "2 ready of 2" in terminal.phalanx("status").stdout
        (terminal.directory / "phalanx.yaml").write_text(SPEC + "idle: 30m\n")
        refused = terminal.phalanx("up", "--yes", check=False)
        assert "cluster earlier has the agent of phalanx 0.1.0+77e65d44" in refused.stderr
        (terminal.directory / "phalanx.yaml").write_text(SPEC)
        assert "nothing was changed" in terminal.phalanx("up").stdout
        processes = terminal.local_cloud_processes()
        down = terminal.phalanx("down", "--yes")
        assert "nothing of it is left" in down.stdout
        assert_nothing_is_left(terminal, processes)


def bring_up(terminal: Terminal) -> None:
    """Create the stack as the earlier `up` did, and write what that stored on this machine."""
    place = terminal.state / "clusters/earlier"
    place.mkdir(parents=True, mode=0o700)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / "id_ed25519")], check=True)
    found = created(terminal, (place / "id_ed25519.pub").read_text().strip())
    outputs = {one["OutputKey"]: one["OutputValue"] for one in found["Outputs"]}
    head, table = outputs["HeadAddress"], outputs["RosterTable"]
    record = json.loads((EARLIER / "cluster.json").read_text())
    record |= {"stack_id": found["StackId"], "head_address": head, "table": table}
    (place / "cluster.json").write_text(json.dumps(record))
    ssh_config = (EARLIER / "ssh_config").read_text()
    # The earlier version's own environment has been removed since.
    paths = {"python": sys.executable, "removed": "/nowhere", "state": terminal.state, "cluster": place}
    (place / "ssh_config").write_text(ssh_config.format(head=head, **paths))
    (place / "known_hosts").write_text(f"@cert-authority * {authority(terminal, table)}\n")


def created(terminal: Terminal, public_key: str) -> dict[str, Any]:
    """Create the stack; return its description once it is complete."""
    cloudformation = api(terminal, "cloudformation")
    parameters = PARAMETERS | {"SshPublicKey": public_key}
    cloudformation.create_stack(
        StackName="earlier",
        TemplateBody=gzip.decompress((EARLIER / "template.json.gz").read_bytes()).decode(),
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
        Capabilities=["CAPABILITY_IAM"],
        Tags=[{"Key": "phalanx:cluster", "Value": "earlier"}],
        TimeoutInMinutes=60,
    )
    waiting = {"Delay": 1, "MaxAttempts": 300}
    cloudformation.get_waiter("stack_create_complete").wait(StackName="earlier", WaiterConfig=waiting)
    return cloudformation.describe_stacks(StackName="earlier")["Stacks"][0]


def authority(terminal: Terminal, table: str) -> str:
    """Return the key of the cluster's certificate authority from the roster table."""
    key = {"item": {"S": "authority"}}
    item = api(terminal, "dynamodb").get_item(TableName=table, Key=key)["Item"]
    return item["public_key"]["S"]
