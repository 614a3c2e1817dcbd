"""Clusters with fewer nodes than requested: each missing node has its reason in `up`, `status` and the stack."""

from __future__ import annotations

import json
import time

import pytest
from local_clouds import api, break_on_purpose, create_as_the_console

pytestmark = pytest.mark.cluster

ONE_WORKER = 'grep -q \'"role": "worker"\' /opt/phalanx/config.json && mkdir {shared}/first 2>/dev/null || exit 0'


@pytest.fixture
def beside(cluster):
    """Another cluster in the session's local cloud; it is taken down at the end."""

    made = []

    def write(text):
        made.append(cluster.beside("degrades", f"name: degrades\ncloud: local\nkeep: no\n{text}"))
        return made[-1]

    yield write
    # In its own directory: one of these clusters is made without phalanx, so only its file names it.
    for terminal in made:
        terminal.phalanx("down", "--yes")


def outputs(terminal):
    (stack,) = api(terminal, "cloudformation").describe_stacks(StackName="degrades")["Stacks"]
    return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}


def outcome(terminal):
    return json.loads(json.loads(outputs(terminal)["Outcome"])["phalanx"])


def workers_wanted(terminal):
    named = [outputs(terminal)["WorkersGroup"]]
    (group,) = api(terminal, "autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=named)[
        "AutoScalingGroups"
    ]
    return group["DesiredCapacity"]


def vcpus_in_use(terminal):
    return 2 * len(json.loads(terminal.phalanx("local", "status", "--json").stdout)["nodes"])


@pytest.mark.parametrize(
    ("nodes", "minimum", "type_", "fault", "script", "reason", "cause"),
    [
        (
            3,
            2,
            "m5.large",
            {"capacity": {"m5.large": 2}},
            "",
            "We currently do not have sufficient m5.large capacity",
            "no capacity",
        ),
        (
            3,
            2,
            "c5.large",
            {"vcpu_limit": 4},
            "",
            "You have requested more vCPU capacity than your current vCPU limit",
            "quota of vCPUs",
        ),
        # Its only worker is the silent one: another one might be late on a busy machine.
        (2, 1, "c5.large", {}, "kill -9 $PPID", "never said hello in 8 s", "never reported"),
        (3, 2, "c5.large", {}, "echo no disk; false", "boot step 'boot script' failed on", "the boot script failed"),
    ],
    ids=["capacity", "quota", "silent", "boot"],
)
def test_a_missing_node_has_its_reason_everywhere(beside, nodes, minimum, type_, fault, script, reason, cause):
    name = f"deeplearning-worker{nodes}"
    text = f"nodes: {nodes}\nmin: {minimum}\ntype: {type_}\nnode_timeout: {8 if '8 s' in reason else 300}s\n"
    if script:
        text += f"boot: |\n  {ONE_WORKER.format(shared='/efs')}\n  {script}\n"
    terminal = beside(text)
    if "vcpu_limit" in fault:
        fault = {"vcpu_limit": fault["vcpu_limit"] + vcpus_in_use(terminal)}
    break_on_purpose(terminal, **fault)
    try:
        up = terminal.phalanx("up", "--json")
        assert f"{name} is missing: " in up.stderr and reason in up.stderr
        reported = json.loads(up.stdout)
        status = json.loads(terminal.phalanx("status", "--json").stdout)
        for missing in (reported["missing"], status["missing"], outcome(terminal)["missing"]):
            assert [(one["name"], reason in one["reason"]) for one in missing] == [(name, True)]
        assert reason in terminal.phalanx("status").stdout
        assert workers_wanted(terminal) == nodes - 2
        assert cause in json.loads(terminal.phalanx("why", "--json").stdout)["cause"]
    finally:
        break_on_purpose(terminal, capacity={"m5.large": None}, vcpu_limit=None)


def test_a_type_that_only_one_zone_offers_is_launched_there(beside):
    terminal = beside("nodes: 1\ntype: trn1.2xlarge\n")
    terminal.phalanx("up")
    assert terminal.on("head", "cat /opt/phalanx/roster.json").count('"zone":"us-east-1c"') == 1


def test_a_zone_that_does_not_offer_the_type_fails_the_stack_in_aws_s_words(beside):
    terminal = beside("nodes: 1\ntype: trn1.2xlarge\n")
    cloudformation = api(terminal, "cloudformation")
    body = terminal.phalanx("template").stdout
    wrong = [{"ParameterKey": "Zone", "ParameterValue": "us-east-1a"}]
    tags = [{"Key": "phalanx:cluster", "Value": "degrades"}]
    stack = create_as_the_console(terminal, "degrades", body, Parameters=wrong, Tags=tags)
    deadline = time.monotonic() + 240
    while cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"] != "ROLLBACK_COMPLETE":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    events = cloudformation.describe_stack_events(StackName=stack)["StackEvents"]
    message = "is not supported in your requested Availability Zone (us-east-1a)"
    (reported,) = {e["ResourceStatusReason"] for e in events if message in e.get("ResourceStatusReason", "")}
    assert "us-east-1c" in reported


def test_where_there_is_no_capacity_the_next_type_is_tried(beside):
    """The head and one worker fit; the second worker, which `min` needs, does not."""
    terminal = beside("nodes: 3\nmin: 3\ntype: [m5.large, m5.xlarge]\nnode_timeout: 300s\n")
    break_on_purpose(terminal, capacity={"m5.large": 2})
    try:
        up = terminal.phalanx("up", "--json")
    finally:
        break_on_purpose(terminal, capacity={"m5.large": None})
    assert "no capacity for m5.large in us-east-1a: " in up.stderr
    assert "nothing of that attempt is left; trying m5.xlarge in us-east-1a" in up.stderr
    assert {node["type"] for node in json.loads(terminal.phalanx("nodes", "--json").stdout)} == {"m5.xlarge"}
