"""Auto Scaling groups: launches, failures, replacement, protection, deletion."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import Cloud, Group, cloud, until

from localcloud.autoscaling.reconciler import Lock
from localcloud.daemon import faults


@pytest.fixture
def local(tmp_path) -> Iterator[Cloud]:
    with cloud(tmp_path) as made:
        yield made


def test_a_group_launches_what_is_desired_from_its_template(local):
    group = Group(local, MinSize=1, Tags=[{"Key": "role", "Value": "worker", "PropagateAtLaunch": True}])
    (instance,) = group.reaches(1)
    shown = group.shown()["Instances"][0]
    assert (shown["HealthStatus"], shown["InstanceType"]) == ("Healthy", "c5.large")
    assert shown["LaunchTemplate"]["Version"] == "1"
    reservation = local.client("ec2").describe_instances(InstanceIds=[instance])["Reservations"][0]
    tags = {tag["Key"]: tag["Value"] for tag in reservation["Instances"][0]["Tags"]}
    assert (tags["role"], tags["aws:autoscaling:groupName"]) == ("worker", group.name)
    activity = group.activities()[0]
    assert activity["Description"] == f"Launching a new EC2 instance: {instance}"
    assert activity["Cause"] == (
        "At 2026-11-20T10:00:00Z a user request created an AutoScalingGroup changing the desired capacity from 0 to 1."
        "  At 2026-11-20T10:00:00Z an instance was started in response to a difference between desired and actual"
        " capacity, increasing the capacity from 0 to 1."
    )
    assert (activity["StatusCode"], activity["Progress"]) == ("Successful", 100)
    assert json.loads(activity["Details"]) == {"Subnet ID": group.subnets[0], "Availability Zone": "us-east-1a"}


def test_a_large_group_answers_while_it_launches(local):
    group = Group(local, MaxSize=60)
    group.want(60)
    seen = {0}
    until(lambda: seen.add(len(group.shown()["Instances"])) or max(seen) == 60)
    assert len(seen) > 2, "at first none, and in the end all"


def test_desired_capacity_must_be_within_the_bounds(local):
    group = Group(local, MinSize=1, MaxSize=3)
    with pytest.raises(ClientError, match="New SetDesiredCapacity value 4 is above max value 3"):
        group.want(4)
    with pytest.raises(ClientError, match="New SetDesiredCapacity value 0 is below min value 1"):
        group.want(0)
    with pytest.raises(ClientError, match="Max bound, 0, must be greater than or equal to min bound, 1"):
        group.api.update_auto_scaling_group(AutoScalingGroupName=group.name, MaxSize=0)
    with pytest.raises(ClientError, match="AutoScalingGroup name not found"):
        group.api.set_desired_capacity(AutoScalingGroupName="none", DesiredCapacity=1)


def test_one_missing_machine_costs_one_instance_and_is_reported_in_aws_words(local):
    faults.apply(local.context, {"capacity": {"c5.large": 3}})
    group = Group(local)
    group.want(4)
    until(lambda: group.failed() and len(group.in_service()) == 3)
    (failure,) = group.failed()
    message = (
        "We currently do not have sufficient c5.large capacity in the Availability Zone you requested (us-east-1a)."
    )
    assert failure["StatusMessage"].startswith(message)
    assert failure["StatusMessage"].endswith("Launching EC2 instance failed.")
    assert failure["Description"].startswith(f"Launching a new EC2 instance.  Status Reason: {message}")
    launched = {one["Cause"] for one in group.activities()}
    assert len(launched) == 1, "the failed launch shares its cause with those that succeeded"


def test_failed_launches_are_retried_with_growing_delays_and_never_within_a_second(local):
    faults.apply(local.context, {"capacity": {"c5.large": 0}})
    group = Group(local, MinSize=1)
    seen = []
    for attempt in range(1, 5):
        until(lambda attempt=attempt: len(group.failed()) == attempt)
        seen += until(local.clock.delays_s)
        local.clock.advance(seen[-1])
    assert seen == [1, 2, 4, 8]
    faults.apply(local.context, {"capacity": {"c5.large": None}})
    local.clock.advance(16)
    group.reaches(1)


def test_a_new_desired_capacity_is_tried_at_once(local):
    faults.apply(local.context, {"capacity": {"c5.large": 1}})
    group = Group(local)
    group.want(2)
    until(lambda: local.clock.delays_s() == [1])
    group.want(2)
    assert local.clock.delays_s() == [1], "the same capacity once more is no news"
    group.want(3)
    until(lambda: len(group.failed()) == 3)
    assert until(local.clock.delays_s) == [1]
    group.want(1)
    group.reaches(1)
    assert (group.shown()["DesiredCapacity"], local.clock.delays_s()) == (1, [])


def test_another_zone_is_tried_when_one_has_no_capacity(local):
    faults.apply(local.context, {"capacity": {"c5.large/us-east-1a": 1}})
    group = Group(local, zones=("us-east-1a", "us-east-1b"))
    group.want(4)
    group.reaches(4)
    zones = sorted(one["AvailabilityZone"] for one in group.shown()["Instances"])
    assert zones == ["us-east-1a", "us-east-1b", "us-east-1b", "us-east-1b"]


def test_a_dead_instance_is_terminated_first_and_then_replaced(local):
    group = Group(local, MinSize=2)
    lost, kept = group.reaches(2)
    local.runner.on_exit(lost)
    until(lambda: lost not in [one["InstanceId"] for one in group.shown()["Instances"]])
    assert kept in group.reaches(2)
    launch, termination = group.activities()[:2]
    assert "launched in response to an unhealthy instance needing to be replaced" in launch["Cause"]
    assert termination["Description"] == f"Terminating EC2 instance: {lost}"
    assert "EC2 health check indicating it has been terminated or stopped" in termination["Cause"]


def test_an_instance_terminated_behind_the_groups_back_is_replaced(local):
    group = Group(local, MinSize=1)
    (lost,) = group.reaches(1)
    local.client("ec2").terminate_instances(InstanceIds=[lost])
    until(lambda: group.in_service() not in ([], [lost]))


@pytest.mark.parametrize("process", ["HealthCheck", "ReplaceUnhealthy"])
def test_suspended_processes_leave_a_dead_instance_alone_until_resumed(local, process):
    group = Group(local, MinSize=1)
    (lost,) = group.reaches(1)
    group.api.suspend_processes(AutoScalingGroupName=group.name, ScalingProcesses=[process])
    local.runner.on_exit(lost)
    group.want(1)
    assert [one["InstanceId"] for one in group.shown()["Instances"]] == [lost]
    assert [one["ProcessName"] for one in group.shown()["SuspendedProcesses"]] == [process]
    group.api.resume_processes(AutoScalingGroupName=group.name, ScalingProcesses=[process])
    until(lambda: group.in_service() not in ([], [lost]))


def test_a_suspended_launch_keeps_terminating_and_launches_when_resumed(local):
    group = Group(local, MinSize=1)
    (lost,) = group.reaches(1)
    group.api.suspend_processes(AutoScalingGroupName=group.name, ScalingProcesses=["Launch"])
    local.runner.on_exit(lost)
    until(lambda: not group.shown()["Instances"])
    group.api.resume_processes(AutoScalingGroupName=group.name)
    group.reaches(1)


def test_a_user_can_mark_an_instance_as_unhealthy(local):
    group = Group(local, MinSize=1)
    (sick,) = group.reaches(1)
    group.api.set_instance_health(InstanceId=sick, HealthStatus="Unhealthy")
    until(lambda: group.in_service() not in ([], [sick]))
    assert any("user health-check" in one["Cause"] for one in group.activities())


def test_terminating_one_instance_with_and_without_replacement(local):
    group = Group(local, MinSize=1)
    group.want(3)
    first, second, _ = group.reaches(3)
    api = group.api
    answer = api.terminate_instance_in_auto_scaling_group(InstanceId=first, ShouldDecrementDesiredCapacity=True)
    assert "shrinking the capacity from 3 to 2" in answer["Activity"]["Cause"]
    assert first not in group.reaches(2)
    assert group.shown()["DesiredCapacity"] == 2
    api.terminate_instance_in_auto_scaling_group(InstanceId=second, ShouldDecrementDesiredCapacity=False)
    until(lambda: second not in [one["InstanceId"] for one in group.shown()["Instances"]])
    (left, _) = group.reaches(2)
    api.terminate_instance_in_auto_scaling_group(InstanceId=left, ShouldDecrementDesiredCapacity=True)
    group.reaches(1)
    with pytest.raises(ClientError, match=r"desiredSize equals minSize \(1\)"):
        api.terminate_instance_in_auto_scaling_group(
            InstanceId=group.in_service()[0], ShouldDecrementDesiredCapacity=True
        )
    with pytest.raises(ClientError, match="No managed instance found for instance ID: i-0"):
        api.terminate_instance_in_auto_scaling_group(InstanceId="i-0", ShouldDecrementDesiredCapacity=True)


def test_scaling_in_spares_protected_instances_and_reports_when_it_is_stuck(local):
    group = Group(local, NewInstancesProtectedFromScaleIn=True)
    group.want(2)
    kept, freed = group.reaches(2)
    group.api.set_instance_protection(AutoScalingGroupName=group.name, InstanceIds=[freed], ProtectedFromScaleIn=False)
    group.want(0)
    until(lambda: [one["InstanceId"] for one in group.shown()["Instances"]] == [kept])
    text = "Could not scale to desired capacity because all remaining instances are protected from scale-in."
    assert [one["Description"] for one in until(group.failed)] == [text]


@pytest.mark.parametrize(("policy", "survivor"), [("Default", 1), ("NewestInstance", 0)])
def test_the_termination_policy_chooses(local, policy, survivor):
    group = Group(local, TerminationPolicies=[policy])
    group.want(1)
    (first,) = group.reaches(1)
    local.clock.advance(60)
    group.want(2)
    second = next(one for one in group.reaches(2) if one != first)
    group.want(1)
    assert group.reaches(1) == [(first, second)[survivor]]


def test_a_boot_that_fails_is_a_cancelled_launch(local):
    local.runner.broken = "no space left on device"
    group = Group(local, MinSize=1)
    cancelled = until(lambda: [one for one in group.activities() if one["StatusCode"] == "Cancelled"])
    assert "no space left on device" in cancelled[0]["StatusMessage"]
    until(lambda: not group.shown()["Instances"])


def test_a_group_with_instances_is_deleted_only_by_force(local):
    group = Group(local, MinSize=1)
    (instance,) = group.reaches(1)
    with pytest.raises(ClientError, match="ResourceInUse"):
        group.api.delete_auto_scaling_group(AutoScalingGroupName=group.name)
    group.api.delete_auto_scaling_group(AutoScalingGroupName=group.name, ForceDelete=True)
    until(lambda: not group.shown())
    assert (instance, False) in local.runner.killed


# moto warns that the service model, from the time before, has no such error.
@pytest.mark.filterwarnings("ignore:Exception.AutoscalingClientError")
def test_a_template_that_cannot_launch_is_refused_with_the_group(local):
    with pytest.raises(ClientError, match=r"You must use a valid fully-formed launch template\. Invalid value"):
        Group(local, template=local.template(InstanceType="c5.tiny"))
    with pytest.raises(ClientError, match="You must use a valid fully-formed launch template"):
        Group(local, template="lt-0123456789abcdef0")
    with pytest.raises(ClientError, match="LifecycleHookSpecificationList is not supported"):
        Group(local, LifecycleHookSpecificationList=[_HOOK])
    with pytest.raises(ClientError, match="Launch Configuration creation operation is not available"):
        local.client("autoscaling").create_launch_configuration(LaunchConfigurationName="old", ImageId="ami-1")


_HOOK = {"LifecycleHookName": "h", "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING"}


def test_those_who_wait_for_a_group_go_before_its_next_launches():
    """Its head describes it while hundreds of nodes boot, on a machine that wakes waiting threads late."""
    lock, seen = Lock(threading.RLock()), []

    def describe() -> None:
        with lock:
            seen.append(lock)

    with lock:
        callers = [threading.Thread(target=describe) for _ in range(5)]
        for caller in callers:
            caller.start()
        until(lambda: len(lock._waiting) == 5)
    lock.let_others()
    assert len(seen) == 5


def schedule(group, after_s: float, name="end", **sizes) -> None:
    start = group.local.context.clock.now() + timedelta(seconds=after_s)
    group.api.put_scheduled_update_group_action(
        AutoScalingGroupName=group.name,
        ScheduledActionName=name,
        StartTime=start,
        **(sizes or {"MinSize": 0, "MaxSize": 0, "DesiredCapacity": 0}),
    )


def scheduled(group) -> list[str]:
    shown = group.api.describe_scheduled_actions(AutoScalingGroupName=group.name)["ScheduledUpdateGroupActions"]
    return [action["ScheduledActionName"] for action in shown]


def test_a_scheduled_action_ends_all_instances_at_its_time_and_is_gone(local):
    group = Group(local, MinSize=1, MaxSize=3)
    group.reaches(1)
    schedule(group, 3600)
    local.context.clock.advance(3599)
    assert (len(group.in_service()), scheduled(group)) == (1, ["end"])
    local.context.clock.advance(2)
    until(lambda: not group.shown()["Instances"])
    assert (scheduled(group), group.shown()["MaxSize"]) == ([], 0)
    assert (
        "a scheduled action update of AutoScalingGroup constraints to min: 0, max: 0, desired: 0 changing the desired "
        "capacity from 1 to 0."
    ) in group.activities()[0]["Cause"]
    with pytest.raises(ClientError, match="SetDesiredCapacity value 1 is above max value 0"):
        group.want(1)


def test_a_scheduled_action_can_be_moved_deleted_and_suspended(local):
    group = Group(local, MinSize=1, MaxSize=3)
    group.reaches(1)
    schedule(group, 60)
    schedule(group, 600)
    schedule(group, 60, "other")
    group.api.delete_scheduled_action(AutoScalingGroupName=group.name, ScheduledActionName="other")
    group.api.suspend_processes(AutoScalingGroupName=group.name, ScalingProcesses=["ScheduledActions"])
    local.context.clock.advance(100)
    assert scheduled(group) == ["end"]
    local.context.clock.advance(600)
    assert (scheduled(group), len(group.in_service())) == ([], 1)
    with pytest.raises(ClientError, match="Scheduled action name not found"):
        group.api.delete_scheduled_action(AutoScalingGroupName=group.name, ScheduledActionName="end")


def test_scheduled_actions_are_refused_as_aws_refuses_them(local):
    group = Group(local, MinSize=1, MaxSize=3)
    with pytest.raises(ClientError, match="Given start time is in the past"):
        schedule(group, -1)
    with pytest.raises(ClientError, match="At least one of min size, max size or desired capacity"):
        group.api.put_scheduled_update_group_action(
            AutoScalingGroupName=group.name, ScheduledActionName="end", StartTime=datetime(2099, 1, 1)
        )
    with pytest.raises(ClientError, match="Recurrence is not supported by the local cloud"):
        schedule(group, 60, DesiredCapacity=1, Recurrence="0 8 * * *")
