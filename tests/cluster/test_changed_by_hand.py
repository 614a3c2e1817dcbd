"""`down` proves that nothing is left of clusters that somebody has changed, or deleted, with AWS's own tools."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from local_clouds import api
from terminals import Terminal, a_terminal
from verdicts import is_gone

pytestmark = pytest.mark.cluster

SPEC = "name: byhand\ncloud: local\nnodes: 2\nmin: 2\ntype: c5.large\nkeep: no\n"
MINE = [{"Name": "tag:phalanx:cluster", "Values": ["byhand"]}]
REAP = ("reap", "--cloud", "local")


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    """A local cloud that does not stop between the tests, which take its cluster down and bring it up again."""
    with a_terminal(SPEC) as made:
        made.phalanx("local", "start")
        api(made, "ec2").create_vpc(CidrBlock="10.9.0.0/16")
        yield made


@pytest.fixture
def up(terminal: Terminal) -> Terminal:
    terminal.phalanx("up")
    return terminal


def revoke_rules(terminal: Terminal) -> None:
    """Take the rules by which nodes talk, and log in, away, and let in the world instead."""
    ec2 = api(terminal, "ec2")
    for group in ec2.describe_security_groups(Filters=MINE)["SecurityGroups"]:
        if group["IpPermissions"]:
            ec2.revoke_security_group_ingress(GroupId=group["GroupId"], IpPermissions=group["IpPermissions"])
        world = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
        ec2.authorize_security_group_ingress(GroupId=group["GroupId"], IpPermissions=[world])


def terminate_the_head(terminal: Terminal) -> None:
    terminate(terminal, "byhand-head")


def terminate_a_worker(terminal: Terminal) -> None:
    terminate(terminal, "byhand-workers")


def terminate(terminal: Terminal, group: str) -> None:
    """Terminate an instance of the group, which begins to replace it."""
    (found,) = api(terminal, "autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[group])[
        "AutoScalingGroups"
    ]
    api(terminal, "ec2").terminate_instances(InstanceIds=[found["Instances"][0]["InstanceId"]])


def remove_the_nat_gateway(terminal: Terminal) -> None:
    ec2 = api(terminal, "ec2")
    for gateway in ec2.describe_nat_gateways(Filters=MINE)["NatGateways"]:
        ec2.delete_nat_gateway(NatGatewayId=gateway["NatGatewayId"])


def test_down_works_after_rules_were_changed_and_nodes_terminated_by_hand(up):
    """All at once, as a person does who looks for what keeps a cluster from working."""
    for change in (revoke_rules, terminate_the_head, terminate_a_worker, remove_the_nat_gateway):
        change(up)
    assert is_gone(up.phalanx("down", "--yes").stdout)
    assert_reap_finds_nothing(up)


def test_a_cluster_that_was_deleted_in_the_console_leaves_only_what_down_then_removes(up):
    """The stack keeps the log group, with the evidence, and the file system, where data may be."""
    stacks = api(up, "cloudformation")
    stack_id = stacks.describe_stacks(StackName="byhand")["Stacks"][0]["StackId"]
    stacks.delete_stack(StackName="byhand")
    until(lambda: stacks.describe_stacks(StackName=stack_id)["Stacks"][0]["StackStatus"], "DELETE_COMPLETE")
    found = up.phalanx(*REAP, check=False)
    first, *left = found.stdout.splitlines()
    assert (found.returncode, first) == (1, "Of cluster byhand is left (it has no stack):")
    # Of the file system, EFS may not have counted the data: it is younger than a day.
    assert len(left) == 1 and re.fullmatch(r"  log group byhand-LogGroup-\w+", left[0]), left
    assert is_gone(up.phalanx("down", "--yes").stdout)
    assert_reap_finds_nothing(up)
    assert "Nothing to do" in up.phalanx("down", "--yes").stdout


def assert_reap_finds_nothing(terminal: Terminal) -> None:
    assert terminal.phalanx(*REAP).stdout == "Nothing is left of any cluster in us-east-1 (local).\n"
    assert json.loads(terminal.phalanx("local", "status", "--json").stdout)["nodes"] == []


def until(look: Callable[[], Any], wanted: Any, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while (found := look()) != wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
