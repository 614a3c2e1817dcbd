"""A changed phalanx.yaml changes a cluster in place: `up` shows how, asks, and real nodes get it."""

from __future__ import annotations

import json
import signal
import time

import pytest
from local_clouds import api, break_on_purpose, wait_for_roster
from terminals import Terminal, a_cluster

from localcloud.api.moto_setup import AMAZON_LINUX

pytestmark = pytest.mark.cluster

SPEC = "name: changing\ncloud: local\nnodes: 2\nmin: 1\ntype: c5.large\nkeep: no\n"
HEAD, WORKER = "deeplearning-worker1", "deeplearning-worker2"
READS = "arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess"


@pytest.fixture(scope="module")
def terminal():
    with a_cluster(SPEC) as terminal:
        yield terminal


def write(terminal: Terminal, *lines: str, nodes: int = 2, kind: str = "c5.large") -> None:
    text = SPEC.replace("nodes: 2", f"nodes: {nodes}").replace("c5.large", kind)
    (terminal.directory / "phalanx.yaml").write_text(text + "".join(f"{line}\n" for line in lines))


def changed(terminal: Terminal) -> dict:
    return json.loads(terminal.phalanx("up", "--yes", "--json").stdout)


def state(terminal: Terminal) -> dict:
    return api(terminal, "cloudformation").describe_stacks(StackName="changing")["Stacks"][0]


def actions(up: dict) -> dict[str, tuple[str, str]]:
    return {one["name"]: (one["action"], one["replaced"]) for one in up["changed"]["resources"]}


def test_what_changes_is_shown_and_nothing_is_done_without_consent(terminal):
    write(terminal, "idle: 40m")
    before = state(terminal)
    refused = terminal.phalanx("up", check=False)
    assert refused.returncode == 2 and "add --yes" in refused.stderr
    assert "→ 2400 s" in refused.stderr and "FleetTopic" in refused.stderr
    assert state(terminal) == before
    left = api(terminal, "cloudformation").list_change_sets(StackName="changing")["Summaries"]
    assert [one for one in left if one["ExecutionStatus"] == "AVAILABLE"] == []


def available(terminal: Terminal) -> list[dict]:
    found = api(terminal, "cloudformation").list_change_sets(StackName="changing")["Summaries"]
    return [one for one in found if one["ExecutionStatus"] != "EXECUTE_COMPLETE"]


def test_a_plan_on_aws_compares_the_cluster_with_the_file_and_changes_nothing(terminal):
    write(terminal, "idle: 40m")
    before = state(terminal)
    found = json.loads(terminal.phalanx("plan", "--on-aws", "--json").stdout)["on_aws"]
    assert "FleetTopic" in {one["logical_id"] for one in found["changes"]}
    assert "would be changed" in terminal.phalanx("plan", "--on-aws").stdout
    break_on_purpose(terminal, change_sets={"takes_s": 5})
    with terminal.start("plan", "--on-aws") as interrupted:
        deadline = time.monotonic() + 60
        while not available(terminal):
            assert time.monotonic() < deadline and interrupted.poll() is None
            time.sleep(0.05)
        interrupted.send_signal(signal.SIGINT)
        shown, _ = interrupted.communicate(timeout=60)
    assert interrupted.returncode == 130, shown
    break_on_purpose(terminal, change_sets={})
    assert (state(terminal), available(terminal)) == (before, [])


def test_what_validations_say_of_a_change_stops_it(terminal):
    said = {"logical_id": "MailSubscription", "reason": "Endpoint is not an address", "name": "PROPERTY_VALIDATION"}
    break_on_purpose(terminal, change_sets={"validations": [said]})
    write(terminal, "mail: another@example.com")
    asked = json.loads(terminal.phalanx("plan", "--on-aws", "--json", check=False).stdout)["on_aws"]
    assert [(one["key"], one["logical_id"]) for one in asked["validations"]] == [("mail", "MailSubscription")]
    for command in (["plan", "--on-aws"], ["up", "--yes"]):
        refused = terminal.phalanx(*command, check=False)
        assert (command[0], refused.returncode) == (command[0], 3)
        assert "Endpoint is not an address" in refused.stdout + refused.stderr
    break_on_purpose(terminal, change_sets={})
    assert available(terminal) == []


def test_what_a_killed_review_leaves_is_gone_with_the_next_up(terminal):
    cloudformation = api(terminal, "cloudformation")
    kept = [{"ParameterKey": one["ParameterKey"], "UsePreviousValue": True} for one in state(terminal)["Parameters"]]
    for name in ("phalanx-0123", "of-somebody-else"):
        cloudformation.create_change_set(
            StackName="changing",
            ChangeSetName=name,
            UsePreviousTemplate=True,
            Parameters=kept,
            Capabilities=["CAPABILITY_IAM"],
            Tags=[{"Key": "more", "Value": "tags"}],
        )
    terminal.phalanx("up", check=False)
    found = cloudformation.list_change_sets(StackName="changing")["Summaries"]
    left = [one["ChangeSetName"] for one in found if one["ExecutionStatus"] == "AVAILABLE"]
    assert left == ["of-somebody-else"]
    cloudformation.delete_change_set(StackName="changing", ChangeSetName=left[0])


def test_limits_rights_mail_and_tags_change_in_place_and_the_nodes_stay(terminal):
    nodes = [node["instance_id"] for node in json.loads(terminal.phalanx("nodes", "--json").stdout)]
    write(terminal, "idle: 30m", "mail: me@example.com", "tags: {project: vision}", f"policies: [{READS}]")
    up = changed(terminal)
    shown = actions(up)
    assert shown["MailSubscription"] == ("Add", "")
    assert (shown["JobRole"], shown["FleetTopic"]) == (("Modify", "False"), ("Modify", "False"))
    assert [node["instance_id"] for node in up["nodes"]] == nodes[:2]
    stack = state(terminal)
    assert {"Key": "project", "Value": "vision"} in stack["Tags"]
    assert {one["ParameterKey"]: one["ParameterValue"] for one in stack["Parameters"]}["Idle"] == "1800"
    outputs = {one["OutputKey"]: one["OutputValue"] for one in stack["Outputs"]}
    attached = api(terminal, "iam").list_attached_role_policies(RoleName=outputs["JobRole"])["AttachedPolicies"]
    assert [one["PolicyArn"] for one in attached] == [READS]
    assert terminal.on(WORKER, "hostname")


def test_another_type_comes_with_new_nodes_and_the_number_of_nodes_at_once(terminal):
    write(terminal, nodes=3, kind="m5.large")
    up = changed(terminal)
    assert (len(up["nodes"]), up["outdated"]) == (3, [HEAD, WORKER])
    assert json.loads(terminal.phalanx("status", "--json").stdout)["outdated"] == [HEAD, WORKER]
    assert terminal.phalanx("nodes").stdout.count("outdated: launched with earlier settings") == 2
    assert actions(up)["WorkersGroup"] == ("Modify", "Conditional")
    new = next(node for node in up["nodes"] if node["name"] not in (HEAD, WORKER))
    described = api(terminal, "ec2").describe_instances(InstanceIds=[new["instance_id"]])
    assert described["Reservations"][0]["Instances"][0]["InstanceType"] == "m5.large"
    shown = terminal.phalanx("up").stdout
    assert "nothing was changed" in shown and f"old      {HEAD}, {WORKER}" in shown
    assert "`phalanx scale 1`, then `phalanx scale 3`" in shown


def test_ctrl_c_in_between_leaves_an_update_that_the_same_command_goes_on_with(terminal):
    write(terminal, "tags: {project: later}")
    before = state(terminal).get("LastUpdatedTime")
    with terminal.start("up", "--yes") as interrupted:
        deadline = time.monotonic() + 240
        while state(terminal).get("LastUpdatedTime") == before and interrupted.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        interrupted.send_signal(signal.SIGINT)
        interrupted.communicate(timeout=300)
    changed(terminal)
    assert {"Key": "project", "Value": "later"} in state(terminal)["Tags"]
    assert json.loads((terminal.state / "clusters/changing/cluster.json").read_text())["spec"]["tags"]


def image_of_worker(terminal: Terminal) -> str:
    """Replace the worker; return the image that the new one has booted."""
    terminal.phalanx("scale", "1", "--yes")
    terminal.phalanx("scale", "2")
    roster = wait_for_roster(terminal, lambda found: len(found.nodes) == 2, 120)
    worker = roster.nodes[1].instance_id
    (found,) = api(terminal, "ec2").describe_instances(InstanceIds=[worker])["Reservations"]
    return found["Instances"][0]["ImageId"]


def test_a_worker_that_is_replaced_boots_the_image_of_its_peers_until_somebody_asks_for_a_newer_one(terminal):
    ssm = api(terminal, "ssm")
    parameter = state(terminal)["Parameters"]
    (image,) = (one for one in parameter if one["ParameterKey"] == "Image")
    # Another test may have named an AMI.
    before = image.get("ResolvedValue") or image["ParameterValue"]
    now = AMAZON_LINUX["x86_64"]
    write(terminal, "image: /mine/image")
    ssm.put_parameter(Name="/mine/image", Value=before, Type="String")
    assert changed(terminal)["changed"]["settings"]
    ssm.put_parameter(Name="/mine/image", Value=now, Type="String", Overwrite=True)
    assert image_of_worker(terminal) == before
    write(terminal, "image: /mine/image", "tags: {team: vision}")
    changed(terminal)
    assert image_of_worker(terminal) == before
    newer = json.loads(terminal.phalanx("up", "--new-image", "--yes", "--json").stdout)["changed"]["settings"]
    assert newer == {"image": {"before": before, "now": now}}
    assert image_of_worker(terminal) == now
    again = json.loads(terminal.phalanx("up", "--new-image", "--yes", "--json").stdout)
    assert again["changed"]["settings"] == {}
