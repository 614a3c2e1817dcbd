"""Auto Scaling groups: launches, failures, replacement, protection, deletion, and what they tell."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import REGION, Cloud, cloud, name, until

from phalanx.localcloud import autoscaling, faults

ALL_KINDS = [
    "autoscaling:EC2_INSTANCE_LAUNCH",
    "autoscaling:EC2_INSTANCE_LAUNCH_ERROR",
    "autoscaling:EC2_INSTANCE_TERMINATE",
]


@pytest.fixture
def local(tmp_path) -> Iterator[Cloud]:
    with cloud(tmp_path) as made:
        yield made


class Group:
    """A group under test and short names for what is asked of it."""

    def __init__(self, local: Cloud, zones=("us-east-1a",), template=None, **settings) -> None:
        self.local, self.name, self.api = local, name("group"), local.client("autoscaling")
        _, self.subnets = local.network(zones)
        sizes = {"MinSize": 0, "MaxSize": 10, **settings}
        self.api.create_auto_scaling_group(
            AutoScalingGroupName=self.name,
            LaunchTemplate={"LaunchTemplateId": template or local.template()},
            VPCZoneIdentifier=",".join(self.subnets),
            **sizes,
        )

    def shown(self) -> dict:
        found = self.api.describe_auto_scaling_groups(AutoScalingGroupNames=[self.name])["AutoScalingGroups"]
        return found[0] if found else {}

    def in_service(self) -> list[str]:
        return [one["InstanceId"] for one in self.shown()["Instances"] if one["LifecycleState"] == "InService"]

    def want(self, desired: int) -> None:
        self.api.set_desired_capacity(AutoScalingGroupName=self.name, DesiredCapacity=desired)

    def reaches(self, count: int) -> list[str]:
        def there() -> bool:
            shown = self.shown()["Instances"]
            return len(shown) == count and all(one["LifecycleState"] == "InService" for one in shown)

        until(there, f"{count} instances in service")
        return self.in_service()

    def activities(self) -> list[dict]:
        return self.api.describe_scaling_activities(AutoScalingGroupName=self.name)["Activities"]

    def failed(self) -> list[dict]:
        return [one for one in self.activities() if one["StatusCode"] == "Failed"]


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


def test_desired_capacity_must_lie_within_the_bounds(local):
    group = Group(local, MinSize=1, MaxSize=3)
    with pytest.raises(ClientError, match="New SetDesiredCapacity value 4 is above max value 3"):
        group.want(4)
    with pytest.raises(ClientError, match="New SetDesiredCapacity value 0 is below min value 1"):
        group.want(0)
    with pytest.raises(ClientError, match="Max bound, 0, must be greater than or equal to min bound, 1"):
        group.api.update_auto_scaling_group(AutoScalingGroupName=group.name, MaxSize=0)
    with pytest.raises(ClientError, match="AutoScalingGroup name not found"):
        group.api.set_desired_capacity(AutoScalingGroupName="none", DesiredCapacity=1)


def test_one_missing_machine_costs_one_instance_and_is_said_in_aws_words(local):
    faults.apply(local.context, {"capacity": {"c5.large": 3}})
    group = Group(local)
    group.want(4)
    until(lambda: group.failed() and len(group.in_service()) == 3)
    (failure,) = group.failed()
    words = "We currently do not have sufficient c5.large capacity in the Availability Zone you requested (us-east-1a)."
    assert failure["StatusMessage"].startswith(words)
    assert failure["StatusMessage"].endswith("Launching EC2 instance failed.")
    assert failure["Description"].startswith(f"Launching a new EC2 instance.  Status Reason: {words}")
    launched = {one["Cause"] for one in group.activities()}
    assert len(launched) == 1, "the failed launch shares its cause with those that succeeded"


def test_failed_launches_are_retried_ever_more_slowly_and_never_within_a_second(local):
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


def test_a_user_can_say_that_an_instance_is_unhealthy(local):
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


def test_scaling_in_spares_protected_instances_and_says_when_it_can_do_no_more(local):
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


def subscribed(local: Cloud) -> tuple[str, str]:
    """A topic that feeds a queue: the topic's ARN and the queue's URL."""
    url, queue_arn = local.queue()
    topic = local.client("sns").create_topic(Name=name("topic"))["TopicArn"]
    local.client("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue_arn)
    return topic, url


def received(local: Cloud, url: str) -> list[tuple[str, dict]]:
    api = local.client("sqs")
    messages = api.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
    for message in messages:
        api.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    envelopes = [json.loads(message["Body"]) for message in messages]
    return [(one["Subject"], json.loads(one["Message"])) for one in envelopes]


def test_notifications_have_the_shapes_that_aws_sends(local):
    topic, url = subscribed(local)
    group = Group(local)
    group.api.put_notification_configuration(
        AutoScalingGroupName=group.name, TopicARN=topic, NotificationTypes=ALL_KINDS
    )
    ((subject, test),) = received(local, url)
    assert subject == f'Auto Scaling: test notification for group "{group.name}"'
    about = {"AccountId", "AutoScalingGroupARN", "AutoScalingGroupName", "Event", "RequestId", "Service", "Time"}
    assert set(test) == about
    assert test["Event"] == "autoscaling:TEST_NOTIFICATION"

    faults.apply(local.context, {"capacity": {"c5.large": 1}})
    group.want(2)
    events = {}
    until(lambda: events.update({m["Event"]: m for _, m in received(local, url)}) or len(events) == 2)
    launch, error = events["autoscaling:EC2_INSTANCE_LAUNCH"], events["autoscaling:EC2_INSTANCE_LAUNCH_ERROR"]
    assert set(launch) == about | {
        *("ActivityId", "Cause", "Description", "Details", "EC2InstanceId", "EndTime", "Progress", "StartTime"),
        *("StatusCode", "StatusMessage"),
    }
    assert (launch["StatusCode"], launch["Progress"], launch["StatusMessage"]) == ("InProgress", 50, "")
    assert launch["EC2InstanceId"] == group.in_service()[0]
    assert launch["Details"] == {"Subnet ID": group.subnets[0], "Availability Zone": "us-east-1a"}
    assert (error["StatusCode"], error["Progress"], error["EC2InstanceId"]) == ("Failed", 100, "")
    assert error["StatusMessage"].endswith("Launching EC2 instance failed.")

    group.want(0)
    ((_, terminated),) = until(lambda: received(local, url))
    assert terminated["Event"] == "autoscaling:EC2_INSTANCE_TERMINATE"
    assert (terminated["StatusCode"], terminated["Progress"]) == ("InProgress", 50)


def test_a_topic_that_is_not_there_is_refused(local):
    group = Group(local)
    topic = f"arn:aws:sns:{REGION}:{local.context.account}:none"
    with pytest.raises(ClientError, match="Unable to publish test notification message"):
        group.api.put_notification_configuration(
            AutoScalingGroupName=group.name, TopicARN=topic, NotificationTypes=ALL_KINDS
        )


class Told:
    """A callback of CloudFormation's: what it was told, once."""

    def __init__(self) -> None:
        self.answers: list[str | None] = []
        self._called = threading.Event()

    def __call__(self, error: str | None) -> None:
        self.answers.append(error)
        self._called.set()

    def answer(self) -> str | None:
        assert self._called.wait(5)
        assert len(self.answers) == 1
        return self.answers[0]


def stack_group(local: Cloud, settled: Told, group: str = "", **properties) -> str:
    group = group or name("stack-head")
    given = {
        "MinSize": "1",
        "MaxSize": "1",
        "LaunchTemplate": {"LaunchTemplateId": local.template(), "Version": "1"},
        "VPCZoneIdentifier": local.network()[1],
        **properties,
    }
    autoscaling.create_group(local.context, REGION, group, given, settled)
    return group


def test_cloudformation_is_told_when_a_group_is_complete_and_when_it_is_gone(local):
    settled, gone = Told(), Told()
    topic, url = subscribed(local)
    notifications = [{"TopicARN": [topic], "NotificationTypes": ALL_KINDS}]
    group = stack_group(local, settled, NotificationConfigurations=notifications)
    assert settled.answer() is None
    until(lambda: any(m["Event"] == ALL_KINDS[0] for _, m in received(local, url)))
    autoscaling.delete_group(local.context, REGION, group, gone)
    assert gone.answer() is None
    again = Told()
    autoscaling.delete_group(local.context, REGION, group, again)
    assert again.answer() is None


def test_a_group_of_none_is_complete_at_once(local):
    settled = Told()
    stack_group(local, settled, MinSize="0", MaxSize="3")
    assert settled.answer() is None


def test_cloudformation_is_told_why_a_group_did_not_stabilize(local):
    faults.apply(local.context, {"fail_launch": "You are not authorized to use this image."})
    settled = Told()
    stack_group(local, settled)
    for delay_s in (1, 2):
        until(lambda delay_s=delay_s: local.clock.delays_s() == [delay_s])
        local.clock.advance(delay_s)
    assert settled.answer() == (
        "Group did not stabilize. Last scaling activity: You are not authorized to use this image."
        " Launching EC2 instance failed."
    )


def test_deleting_cancels_what_was_awaited_and_stops_retries(local):
    faults.apply(local.context, {"capacity": {"c5.large": 0}})
    settled, gone = Told(), Told()
    group = stack_group(local, settled)
    until(local.clock.delays_s)
    autoscaling.delete_group(local.context, REGION, group, gone)
    assert gone.answer() is None
    local.clock.advance(60)
    assert settled.answers == []


def test_a_group_that_has_the_name_of_a_deleted_one_stays(local):
    faults.apply(local.context, {"capacity": {"c5.large": 0}})
    gone, settled = Told(), Told()
    group = stack_group(local, Told())
    until(local.clock.delays_s)
    autoscaling.delete_group(local.context, REGION, group, gone)
    assert gone.answer() is None
    faults.apply(local.context, {"capacity": {"c5.large": None}})
    stack_group(local, settled, group=group)
    assert settled.answer() is None
    local.clock.advance(600)
    later = Told()
    stack_group(local, later)  # groups are looked at in turn
    assert later.answer() is None
    assert autoscaling.group_named(REGION, group).in_service() == 1


def test_a_group_that_goes_takes_no_more_instances(local, monkeypatch):
    may_end, settled, gone = threading.Event(), Told(), Told()
    group = stack_group(local, settled, MaxSize="3")
    assert settled.answer() is None
    monkeypatch.setattr(local.runner, "kill", lambda *_: may_end.wait(5))
    autoscaling.delete_group(local.context, REGION, group, gone)
    api = local.client("autoscaling")
    with pytest.raises(ClientError, match="above max value 0"):
        api.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=2)
    with pytest.raises(ClientError, match="pending delete"):
        api.update_auto_scaling_group(AutoScalingGroupName=group, MaxSize=3, DesiredCapacity=2)
    may_end.set()
    assert gone.answer() is None


def test_protected_instances_make_the_deletion_by_cloudformation_fail(local):
    settled, gone = Told(), Told()
    group = stack_group(local, settled, NewInstancesProtectedFromScaleIn=True)
    assert settled.answer() is None
    autoscaling.delete_group(local.context, REGION, group, gone)
    assert "all remaining instances are protected from scale-in" in (gone.answer() or "")


def test_an_update_keeps_running_instances_and_the_capacity_it_does_not_name(local):
    settled, updated = Told(), Told()
    group = stack_group(local, settled, MinSize="0", MaxSize="3")
    assert settled.answer() is None
    api = local.client("autoscaling")
    api.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=2)
    until(lambda: len(api.describe_auto_scaling_instances()["AutoScalingInstances"]) >= 2)
    properties = {"MinSize": "0", "MaxSize": "5", "LaunchTemplate": {"LaunchTemplateId": local.template()}}
    autoscaling.update_group(local.context, REGION, group, properties, updated)
    assert updated.answer() is None
    shown = api.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"][0]
    assert (shown["DesiredCapacity"], shown["MaxSize"], len(shown["Instances"])) == (2, 5, 2)
