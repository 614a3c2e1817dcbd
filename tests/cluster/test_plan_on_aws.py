"""`phalanx plan --on-aws`: the cloud judges a plan before anything is made, and nothing of that stays."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from local_clouds import api, bad_weather, break_on_purpose
from terminals import Terminal, a_terminal, assert_nothing_is_left

pytestmark = pytest.mark.cluster

SPEC = "name: asked\ncloud: local\nnodes: 2\ntype: c5.large\nkeep: no\nmail: me@example.com\n"
NAME = {
    "logical_id": "RosterTable",
    "name": "NAME_CONFLICT_VALIDATION",
    "reason": "Resource of type 'AWS::DynamoDB::Table' with identifier 'x' already exists.",
}
PLACE = "/Resources/HeadLaunchTemplate/Properties/LaunchTemplateData/InstanceType"
PROPERTY = {"logical_id": "HeadLaunchTemplate", "reason": "z is not a valid enum value", "path": PLACE}
TOPIC = json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}})


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    """A local cloud that outlives each command, because somebody has a VPC in it."""
    with a_terminal(SPEC) as terminal:
        terminal.phalanx("local", "start")
        api(terminal, "ec2").create_vpc(CidrBlock="10.99.0.0/16")
        yield terminal


def asked(terminal: Terminal, *options: str, status: int = 0) -> dict[str, Any]:
    done = terminal.phalanx("plan", "--on-aws", "--json", *options, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(done.stdout)["on_aws"]


def stacks_of(terminal: Terminal) -> dict[str, str]:
    found = api(terminal, "cloudformation").describe_stacks()["Stacks"]
    return {one["StackName"]: one["StackStatus"] for one in found}


def plant(terminal: Terminal, *validations: dict[str, Any], takes_s: float = 0) -> None:
    break_on_purpose(terminal, change_sets={"takes_s": takes_s, "validations": list(validations)})


def begun(terminal: Terminal) -> subprocess.Popen[str]:
    """Start the command; return it when its stack is in review."""
    running = terminal.start("plan", "--on-aws")
    deadline = time.monotonic() + 60
    while "asked" not in stacks_of(terminal):
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.05)
    return running


def test_a_local_cloud_is_started_for_it_and_ended_again():
    with a_terminal(SPEC) as terminal:
        found = asked(terminal)
        assert found["works"] and found["rights"] > 100
        assert found["launches"] == ["c5.large"]
        assert {one["action"] for one in found["changes"]} == {"Add"}
        assert (found["validations"], found["refused"], found["denied"], found["not_checked"]) == ([], [], [], [])
        assert_nothing_is_left(terminal, set())


def test_every_validation_is_shown_with_its_key_and_nothing_is_left(terminal):
    address = {"logical_id": "NatAddress", "reason": "5 of 5 are in use", "name": "SERVICE_QUOTA", "mode": "WARN"}
    plant(terminal, NAME, PROPERTY, address)
    found = asked(terminal, status=3)
    shown = {one["logical_id"]: (one["key"], one["blocks"]) for one in found["validations"]}
    assert shown == {
        "RosterTable": (None, True),
        "HeadLaunchTemplate": ("type", True),
        "NatAddress": ("network", False),
    }
    text = terminal.phalanx("plan", "--on-aws", check=False).stdout
    assert "phalanx.yaml:4: type: HeadLaunchTemplate" in text and PLACE in text and "already exists" in text
    plant(terminal, address)
    assert asked(terminal)["works"]
    plant(terminal)
    assert stacks_of(terminal) == {}


def test_a_quota_of_the_account_is_a_warning(terminal):
    break_on_purpose(terminal, vpc_limit=1)
    assert [(one["logical_id"], one["blocks"]) for one in asked(terminal)["validations"]] == [("Vpc", False)]
    break_on_purpose(terminal, vpc_limit=None)


def test_ctrl_c_leaves_nothing(terminal):
    plant(terminal, takes_s=6)
    running = begun(terminal)
    running.send_signal(signal.SIGINT)
    shown, _ = running.communicate(timeout=60)
    assert running.returncode == 130, shown
    assert stacks_of(terminal) == {}
    plant(terminal)


@pytest.mark.parametrize("ends_it", ["down", "up"])
def test_what_a_kill_leaves_is_named_and_removed(terminal, ends_it):
    plant(terminal, NAME, PROPERTY, takes_s=6)
    running = begun(terminal)
    running.kill()
    running.communicate(timeout=60)
    assert stacks_of(terminal) == {"asked": "REVIEW_IN_PROGRESS"}
    left = terminal.phalanx("reap", "--cloud", "local", "--json", check=False)
    assert left.returncode == 1
    assert [(one["cluster"], one["stack"]) for one in json.loads(left.stdout)] == [("asked", "REVIEW_IN_PROGRESS")]
    again = terminal.phalanx("plan", "--on-aws", check=False)
    assert again.returncode == 6 and "phalanx down -c asked" in again.stderr
    if ends_it == "down":
        terminal.phalanx("down", "--yes")
    else:
        refused = terminal.phalanx("up", check=False)
        assert refused.returncode == 4
        assert "already exists" in refused.stderr and PLACE in refused.stderr
        why = terminal.phalanx("why", check=False)
        assert "already exists" in why.stdout and PLACE in why.stdout
    plant(terminal)
    assert stacks_of(terminal) == {}
    assert terminal.phalanx("reap", "--cloud", "local").returncode == 0


@pytest.mark.parametrize("is_reviewed", [True, False])
def test_a_stack_of_somebody_else_is_never_touched(terminal, is_reviewed):
    cloudformation = api(terminal, "cloudformation")
    named = {"StackName": "asked", "TemplateBody": TOPIC}
    if is_reviewed:
        cloudformation.create_change_set(ChangeSetName="theirs", ChangeSetType="CREATE", **named)
    else:
        cloudformation.create_stack(**named)
        cloudformation.get_waiter("stack_create_complete").wait(StackName="asked", WaiterConfig={"Delay": 1})
    before = stacks_of(terminal)
    for command in (["plan", "--on-aws"], ["up"], ["down", "--yes"]):
        refused = terminal.phalanx(*command, check=False)
        assert (command, refused.returncode) == (command, 6), refused.stderr
    assert terminal.phalanx("reap", "--cloud", "local").returncode == 0
    assert stacks_of(terminal) == before
    cloudformation.delete_stack(StackName="asked")
    cloudformation.get_waiter("stack_delete_complete").wait(StackName="asked", WaiterConfig={"Delay": 1})


def test_an_organisations_denial_is_what_the_dry_run_shows(terminal):
    with bad_weather(terminal, 1, "explicit-deny"):
        found = asked(terminal, status=3)
    assert any("UnauthorizedOperation" in one for one in found["refused"])


def test_change_sets_may_be_late_and_calls_throttled(terminal):
    with bad_weather(terminal, 3, "change-sets", "throttling", speed=10):
        assert asked(terminal)["works"]
    assert stacks_of(terminal) == {}


def a_person(terminal: Terminal, policy: dict[str, Any]) -> dict[str, str]:
    """Return the variables of somebody who has a role with this policy."""
    iam, there = api(terminal, "iam"), api(terminal, "sts")
    trust = {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::123456789012:root"}, "Action": "sts:AssumeRole"}
    name = f"person-{time.monotonic_ns()}"
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=document)["Role"]["Arn"]
    iam.put_role_policy(RoleName=name, PolicyName="phalanx", PolicyDocument=json.dumps(policy))
    keys = there.assume_role(RoleArn=role, RoleSessionName="me")["Credentials"]
    return {
        "AWS_ENDPOINT_URL": iam.meta.endpoint_url,
        "AWS_ACCESS_KEY_ID": keys["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": keys["SecretAccessKey"],
        "AWS_SESSION_TOKEN": keys["SessionToken"],
    }


def as_a_person(terminal: Terminal, person: dict[str, str], status: int) -> dict[str, Any]:
    running = terminal.start("plan", "--on-aws", "--json", errors=subprocess.PIPE, **person)
    shown, errors = running.communicate(timeout=120)
    assert running.returncode == status, shown + errors
    return json.loads(shown)["on_aws"]


def test_rights_that_are_missing_are_named_and_what_may_not_be_asked_is_not_checked(terminal):
    policy = json.loads(terminal.phalanx("policy").stdout)
    simulator = {"Effect": "Allow", "Action": ["iam:SimulatePrincipalPolicy"], "Resource": "*"}
    whole = {**policy, "Statement": [*policy["Statement"], simulator]}
    found = as_a_person(terminal, a_person(terminal, whole), 0)
    assert (found["denied"], found["not_checked"]) == ([], [])
    assert found["rights"] > 100
    denied = {"Effect": "Deny", "Action": ["dynamodb:CreateTable"], "Resource": "*"}
    found = as_a_person(terminal, a_person(terminal, {**whole, "Statement": [*whole["Statement"], denied]}), 3)
    assert [one.partition(" ")[0] for one in found["denied"]] == ["dynamodb:CreateTable"]
    # The policy lets a user simulate himself; it can't know the name of a role.
    found = as_a_person(terminal, a_person(terminal, policy), 0)
    assert len(found["not_checked"]) == 1 and "iam:SimulatePrincipalPolicy" in found["not_checked"][0]
    plant(terminal, NAME)
    blind = {"Effect": "Deny", "Action": ["cloudformation:DescribeEvents"], "Resource": "*"}
    found = as_a_person(terminal, a_person(terminal, {**whole, "Statement": [*whole["Statement"], blind]}), 3)
    assert any("cloudformation:DescribeEvents" in one for one in found["not_checked"])
    assert any("ResourceExistenceCheck" in one for one in found["refused"])
    plant(terminal)
    assert stacks_of(terminal) == {}
