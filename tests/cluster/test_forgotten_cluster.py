"""A cluster that was stopped and forgotten is removed from inside the cloud, without its data (`down_after`)."""

from __future__ import annotations

import time

import pytest
from local_clouds import api
from needed_rights import not_needed, rights

from conftest import a_terminal, assert_nothing_is_left

pytestmark = pytest.mark.cluster

FORGOTTEN = "name: forgotten\ncloud: local\nnodes: 2\nmin: 2\ntype: c5.large\nkeep: no\ndown_after: 20s\n"
# A rule looks every minute, divided by the weather's speed, which divides all of AWS's own waits.
HURRY = ("local", "weather", "1", "--only", "packages", "--speed", "20")
REMOVED_S = 400.0


def test_a_forgotten_cluster_is_removed_without_its_data_and_one_started_in_time_is_not():
    """Nothing here asks for the deletion: the stack's own rule and function do, as on AWS."""
    with a_terminal(FORGOTTEN) as terminal:
        terminal.phalanx(*HURRY)
        terminal.phalanx("up")
        first = cluster_stack(terminal)
        terminal.on("worker2", "echo kept > /efs/kept")
        # On a slow machine the removal may be due before the next command has extended it.
        set_extension(terminal, 600)
        terminal.phalanx("extend", "2s")
        wait_until_stopped(terminal)
        assert "is deleted in" in terminal.phalanx("extend", "1h").stdout
        assert extension(terminal) > time.time() + 600
        assert "removal   in " in terminal.phalanx("status").stdout
        time.sleep(30)
        assert cluster_stack(terminal)["StackStatus"] == "CREATE_COMPLETE", "extended"
        terminal.phalanx("up")
        assert cluster_stack(terminal)["StackId"] == first["StackId"], "started in time"
        forget_extension(terminal)
        terminal.phalanx("extend", "2s")
        wait_until_removed(terminal, first["StackId"])
        (role,) = removal_roles(terminal)
        # This stack has no lease.
        assert not_needed(*rights(terminal, role)[1:], ["autoscaling:DeleteScheduledAction"]) == []
        assert "was deleted since; making it again" in terminal.phalanx("up").stderr
        assert cluster_stack(terminal)["StackId"] != first["StackId"]
        assert role not in removal_roles(terminal) != []
        assert terminal.on("worker2", "cat /efs/kept") == "kept\n"
        processes = terminal.local_cloud_processes()
        terminal.phalanx("down", "--yes")
        assert_nothing_is_left(terminal, processes)


def wait_until_stopped(terminal) -> None:
    groups = api(terminal, "autoscaling")
    deadline = time.monotonic() + REMOVED_S
    while groups.describe_auto_scaling_groups(AutoScalingGroupNames=["forgotten-head"])["AutoScalingGroups"][0][
        "DesiredCapacity"
    ]:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def cluster_stack(terminal) -> dict:
    (stack,) = api(terminal, "cloudformation").describe_stacks(StackName="forgotten")["Stacks"]
    return stack


def removal_roles(terminal) -> list[str]:
    found = api(terminal, "iam").list_roles(PathPrefix="/phalanx/us-east-1/")["Roles"]
    return [role["RoleName"] for role in found]


EXTENSION = {"ResourceId": "forgotten-head", "ResourceType": "auto-scaling-group", "Key": "phalanx:keep-until"}


def set_extension(terminal, in_s: int) -> None:
    value = {"Value": str(int(time.time()) + in_s), "PropagateAtLaunch": False}
    api(terminal, "autoscaling").create_or_update_tags(Tags=[{**EXTENSION, **value}])


def extension(terminal) -> float:
    """Return until when a stopped cluster is kept, in seconds since the epoch."""
    found = api(terminal, "autoscaling").describe_tags(Filters=[{"Name": "key", "Values": [EXTENSION["Key"]]}])["Tags"]
    return float(found[0]["Value"])


def forget_extension(terminal) -> None:
    api(terminal, "autoscaling").delete_tags(Tags=[EXTENSION])


def wait_until_removed(terminal, stack_id: str) -> None:
    deadline = time.monotonic() + REMOVED_S
    cloudformation = api(terminal, "cloudformation")
    while (found := cloudformation.describe_stacks(StackName=stack_id)["Stacks"][0])[
        "StackStatus"
    ] != "DELETE_COMPLETE":
        assert time.monotonic() < deadline and found["StackStatus"] != "DELETE_FAILED", events_of(
            cloudformation, stack_id
        )
        time.sleep(1)


def events_of(cloudformation, stack_id: str) -> list[tuple[str, str, str]]:
    events = cloudformation.describe_stack_events(StackName=stack_id)["StackEvents"]
    return [(e["LogicalResourceId"], e["ResourceStatus"], e.get("ResourceStatusReason", "")) for e in events]
