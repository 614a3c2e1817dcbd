"""Groups that wait for their machines' signals: in their creation, and in rolling and replacing updates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import IMAGE, ZONE, forget_resources, name, until
from stack_fakes import Stacks, stacks

ROLLING = {"WaitOnResourceSignals": True, "PauseTime": "PT5M"}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running
        forget_resources(running.context.account)


def body(kind: str = "c5.large", sizes: tuple[int, int, int] = (0, 4, 2), **policies: Any) -> str:
    template = {"ImageId": IMAGE, "InstanceType": kind}
    chosen = {"LaunchTemplateId": {"Ref": "Template"}, "Version": {"Fn::GetAtt": ["Template", "LatestVersionNumber"]}}
    least, most, wanted = sizes
    size = {"MinSize": str(least), "MaxSize": str(most), "DesiredCapacity": str(wanted)}
    group = {"AvailabilityZones": [ZONE], "LaunchTemplate": chosen, **size}
    resources = {
        "Template": {"Type": "AWS::EC2::LaunchTemplate", "Properties": {"LaunchTemplateData": template}},
        "Group": {"Type": "AWS::AutoScaling::AutoScalingGroup", "Properties": group, **policies},
    }
    return json.dumps({"Resources": resources})


def creation(count: int, percent: int = 100) -> dict[str, Any]:
    least = {"MinSuccessfulInstancesPercent": percent}
    return {"ResourceSignal": {"Count": count, "Timeout": "PT10M"}, "AutoScalingCreationPolicy": least}


def created(cloud: Stacks, text: str) -> str:
    stack = name("group")
    return cloud.cloudformation.create_stack(StackName=stack, TemplateBody=text)["StackId"]


def members(cloud: Stacks, stack: str) -> list[str]:
    """Return the ids of the group's instances."""
    group = until(lambda: cloud.engine.find(stack, "us-east-1").resources["Group"].physical_id)
    found = cloud.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[group])
    return sorted(one["InstanceId"] for one in found["AutoScalingGroups"][0]["Instances"])


def launched(cloud: Stacks, stack: str, number: int) -> list[str]:
    return until(lambda: len(found := members(cloud, stack)) == number and found, f"{number} instances")


def send(cloud: Stacks, stack: str, who: str, status: str = "SUCCESS") -> None:
    asked = {"StackName": stack, "LogicalResourceId": "Group", "UniqueId": who, "Status": status}
    cloud.cloudformation.signal_resource(**asked)


def reasons(cloud: Stacks, stack: str) -> list[str]:
    return [reason for who, _, reason in cloud.history(stack) if who == "Group" and reason]


def said(cloud: Stacks, stack: str, text: str) -> None:
    until(lambda: any(text in reason for reason in reasons(cloud, stack)), text)


def complete(cloud: Stacks, **policies: Any) -> str:
    stack = created(cloud, body(**policies))
    assert cloud.settled(stack) == "CREATE_COMPLETE"
    return stack


def updated(cloud: Stacks, stack: str, **given: Any) -> None:
    cloud.cloudformation.update_stack(StackName=stack, TemplateBody=body("c5.xlarge", **given))


def test_a_group_is_complete_when_all_of_its_machines_have_signalled(cloud):
    stack = created(cloud, body(CreationPolicy=creation(2)))
    first, second = launched(cloud, stack, 2)
    send(cloud, stack, first)
    send(cloud, stack, first)
    cloud.engine.idle()
    assert cloud.status(stack, "Group") == "CREATE_IN_PROGRESS"
    send(cloud, stack, second)
    assert cloud.settled(stack) == "CREATE_COMPLETE"
    assert reasons(cloud, stack).count(f"Received SUCCESS signal with UniqueId {first}") == 1
    with pytest.raises(ClientError, match="is in CREATE_COMPLETE state and cannot be signaled"):
        send(cloud, stack, first)


def test_a_signal_says_success_or_failure(cloud):
    stack = created(cloud, body(CreationPolicy=creation(1)))
    with pytest.raises(ClientError, match="Value 'MAYBE' at 'status' failed to satisfy constraint"):
        send(cloud, stack, "me", "MAYBE")
    assert cloud.deleted(stack) == "DELETE_COMPLETE"


def test_a_failure_is_one_too_many_only_below_the_least_percentage(cloud):
    stack = created(cloud, body(CreationPolicy=creation(2)))
    send(cloud, stack, launched(cloud, stack, 2)[0], "FAILURE")
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    few = "Received 1 FAILURE signal(s) out of 2. Unable to satisfy 100% MinSuccessfulInstancesPercent requirement"
    assert cloud.reason(stack, "Group", "CREATE_FAILED") == few
    half = created(cloud, body(CreationPolicy=creation(2, percent=50)))
    for who, status in zip(launched(cloud, half, 2), ("FAILURE", "SUCCESS"), strict=True):
        send(cloud, half, who, status)
    assert cloud.settled(half) == "CREATE_COMPLETE"


def test_who_does_not_signal_in_time_counts_as_a_failure(cloud):
    stack = created(cloud, body(CreationPolicy=creation(2)))
    send(cloud, stack, launched(cloud, stack, 2)[0])
    cloud.engine.idle()
    cloud.clock.advance(601)
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    few = "Received 1 SUCCESS signal(s) out of 2. Unable to satisfy 100% MinSuccessfulInstancesPercent requirement"
    assert cloud.reason(stack, "Group", "CREATE_FAILED") == few
    missed = "Failed to receive 1 resource signal(s) for the current batch. Each resource signal timeout is counted"
    assert any(reason.startswith(missed) for reason in reasons(cloud, stack))


def test_a_rolling_update_replaces_one_machine_after_another_and_waits_for_each(cloud):
    policy = {"AutoScalingRollingUpdate": {**ROLLING, "MinInstancesInService": 1}}
    stack = complete(cloud, UpdatePolicy=policy)
    old = launched(cloud, stack, 2)
    updated(cloud, stack, UpdatePolicy=policy)
    said(cloud, stack, "Rolling update initiated. Terminating 2 obsolete instance(s) in batches of 1, while keeping at")
    known = set(old)
    for left in (1, 0):
        (new,) = until(lambda: set(members(cloud, stack)) - known)
        known.add(new)
        assert len(set(old) & set(members(cloud, stack))) == left
        send(cloud, stack, new)
    said(cloud, stack, "Waiting on 1 resource signal(s) with a timeout of PT5M")
    assert cloud.settled(stack) == "UPDATE_COMPLETE"
    assert any("(Progress 50%)" in reason for reason in reasons(cloud, stack))
    assert not set(old) & set(members(cloud, stack))


def test_a_rolling_update_that_fails_is_rolled_back(cloud):
    policy = {"AutoScalingRollingUpdate": {**ROLLING, "MinInstancesInService": 1}}
    stack = complete(cloud, UpdatePolicy=policy)
    old = launched(cloud, stack, 2)
    updated(cloud, stack, UpdatePolicy=policy)
    said(cloud, stack, "Waiting on 1 resource signal(s)")
    (new,) = set(members(cloud, stack)) - set(old)
    send(cloud, stack, new, "FAILURE")
    few = "Received 1 FAILURE signal(s) out of 2. Unable to satisfy 100% MinSuccessfulInstancesPercent requirement"
    until(lambda: few in reasons(cloud, stack))
    known = {*old, new}
    for _ in range(2):
        (repaired,) = until(lambda: set(members(cloud, stack)) - known)
        known.add(repaired)
        send(cloud, stack, repaired)
    assert cloud.settled(stack) == "UPDATE_ROLLBACK_COMPLETE", cloud.history(stack)
    assert new not in members(cloud, stack)


def test_a_group_that_can_neither_shrink_nor_grow_is_not_updated(cloud):
    policy = {"AutoScalingRollingUpdate": {"MinInstancesInService": 2}}
    stack = complete(cloud, sizes=(0, 2, 2), UpdatePolicy=policy)
    updated(cloud, stack, sizes=(0, 2, 2), UpdatePolicy=policy)
    assert cloud.settled(stack) == "UPDATE_ROLLBACK_FAILED"


def test_a_group_that_may_not_shrink_grows_first(cloud):
    policy = {"AutoScalingRollingUpdate": {"MinInstancesInService": 2, "MaxBatchSize": 2}}
    stack = complete(cloud, UpdatePolicy=policy)
    old = launched(cloud, stack, 2)
    updated(cloud, stack, UpdatePolicy=policy)
    assert cloud.settled(stack) == "UPDATE_COMPLETE"
    assert "Temporarily setting autoscaling group MinSize and DesiredCapacity to 4." in reasons(cloud, stack)
    assert not set(old) & set(launched(cloud, stack, 2))


def test_a_change_that_makes_no_machine_obsolete_ends_none(cloud):
    policy = {"AutoScalingRollingUpdate": ROLLING}
    stack = complete(cloud, UpdatePolicy=policy)
    old = launched(cloud, stack, 2)
    text = body(sizes=(0, 5, 2), UpdatePolicy=policy)
    cloud.cloudformation.update_stack(StackName=stack, TemplateBody=text)
    assert cloud.settled(stack) == "UPDATE_COMPLETE"
    assert launched(cloud, stack, 2) == old


def test_a_replacing_update_makes_a_group_before_it_deletes_the_old_one(cloud):
    policies = {"UpdatePolicy": {"AutoScalingReplacingUpdate": {"WillReplace": True}}}
    stack = complete(cloud, **policies)
    old, before = launched(cloud, stack, 2), cloud.physical(stack, "Group")
    updated(cloud, stack, CreationPolicy=creation(2), **policies)
    until(lambda: cloud.physical(stack, "Group") != before)
    for new in launched(cloud, stack, 2):
        send(cloud, stack, new)
    assert cloud.settled(stack) == "UPDATE_COMPLETE"
    assert not set(old) & set(members(cloud, stack))
    found = cloud.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    assert before not in [one["AutoScalingGroupName"] for one in found]
