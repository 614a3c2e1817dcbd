"""Auto Scaling groups as CloudFormation creates, updates and deletes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import ALL_KINDS, REGION, Cloud, cloud, name, received, subscribed, until

from localcloud import autoscaling
from localcloud.daemon import faults


@pytest.fixture
def local(tmp_path) -> Iterator[Cloud]:
    with cloud(tmp_path) as made:
        yield made


class Notified:
    """A callback of CloudFormation, which must be called once."""

    def __init__(self) -> None:
        self.answers: list[str | None] = []
        self._called = threading.Event()

    def __call__(self, error: str | None) -> None:
        self.answers.append(error)
        self._called.set()

    def answer(self) -> str | None:
        assert self._called.wait(120)
        assert len(self.answers) == 1
        return self.answers[0]


def stack_group(local: Cloud, settled: Notified, group: str = "", **properties) -> str:
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


def test_cloudformation_is_notified_when_a_group_is_complete_and_when_it_is_gone(local):
    settled, gone = Notified(), Notified()
    topic, url = subscribed(local)
    notifications = [{"TopicARN": [topic], "NotificationTypes": ALL_KINDS}]
    group = stack_group(local, settled, NotificationConfigurations=notifications)
    assert settled.answer() is None
    until(lambda: any(m["Event"] == ALL_KINDS[0] for _, m in received(local, url)))
    autoscaling.delete_group(local.context, REGION, group, gone)
    assert gone.answer() is None
    again = Notified()
    autoscaling.delete_group(local.context, REGION, group, again)
    assert again.answer() is None


def test_an_empty_group_is_complete_at_once(local):
    settled = Notified()
    stack_group(local, settled, MinSize="0", MaxSize="3")
    assert settled.answer() is None


def test_cloudformation_learns_why_a_group_did_not_stabilize(local):
    faults.apply(local.context, {"fail_launch": "You are not authorized to use this image."})
    settled = Notified()
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
    settled, gone = Notified(), Notified()
    group = stack_group(local, settled)
    until(local.clock.delays_s)
    autoscaling.delete_group(local.context, REGION, group, gone)
    assert gone.answer() is None
    local.clock.advance(60)
    assert settled.answers == []


def test_what_a_deleted_group_did_is_shown_to_whoever_asks_for_deleted_groups(local):
    settled, gone = Notified(), Notified()
    group = stack_group(local, settled)
    assert settled.answer() is None
    autoscaling.delete_group(local.context, REGION, group, gone)
    assert gone.answer() is None
    ask = local.client("autoscaling").describe_scaling_activities
    with pytest.raises(ClientError, match="not found"):
        ask(AutoScalingGroupName=group)
    assert not [one for one in ask()["Activities"] if one["AutoScalingGroupName"] == group]
    for given in ({"AutoScalingGroupName": group}, {}):
        done = ask(IncludeDeletedGroups=True, **given)["Activities"]
        did = [one["Description"].split()[0] for one in done if one["AutoScalingGroupName"] == group]
        assert did == ["Terminating", "Launching"]
    with pytest.raises(ClientError, match="not found"):
        ask(AutoScalingGroupName="never-made", IncludeDeletedGroups=True)


def test_a_group_that_has_the_name_of_a_deleted_one_stays(local):
    faults.apply(local.context, {"capacity": {"c5.large": 0}})
    gone, settled = Notified(), Notified()
    group = stack_group(local, Notified())
    until(local.clock.delays_s)
    autoscaling.delete_group(local.context, REGION, group, gone)
    assert gone.answer() is None
    faults.apply(local.context, {"capacity": {"c5.large": None}})
    stack_group(local, settled, group=group)
    assert settled.answer() is None
    local.clock.advance(600)
    later = Notified()
    stack_group(local, later)  # groups are reconciled in order
    assert later.answer() is None
    assert autoscaling.group_named(REGION, group).in_service() == 1


def test_a_group_that_is_being_deleted_takes_no_more_instances(local, monkeypatch):
    may_end, settled, gone = threading.Event(), Notified(), Notified()
    group = stack_group(local, settled, MaxSize="3")
    assert settled.answer() is None
    monkeypatch.setattr(local.runner, "kill", lambda *_: may_end.wait(120))
    autoscaling.delete_group(local.context, REGION, group, gone)
    api = local.client("autoscaling")
    with pytest.raises(ClientError, match="above max value 0"):
        api.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=2)
    with pytest.raises(ClientError, match="pending delete"):
        api.update_auto_scaling_group(AutoScalingGroupName=group, MaxSize=3, DesiredCapacity=2)
    may_end.set()
    assert gone.answer() is None


def test_a_group_is_not_gone_before_an_instance_that_never_started(local, monkeypatch):
    """Otherwise its interface would hold the subnet and the security group, which CloudFormation deletes next."""
    ending, may_end, gone = threading.Event(), threading.Event(), Notified()

    def kill(*_) -> None:
        ending.set()
        assert may_end.wait(120)

    monkeypatch.setattr(local.runner, "kill", kill)
    local.runner.broken = "no room"
    group = stack_group(local, Notified())
    assert ending.wait(120)
    autoscaling.delete_group(local.context, REGION, group, gone)
    stack_group(local, (other := Notified()), MinSize="0")  # groups are reconciled in order
    assert other.answer() is None
    assert gone.answers == []
    may_end.set()
    assert gone.answer() is None


def test_protected_instances_make_the_deletion_by_cloudformation_fail(local):
    settled, gone = Notified(), Notified()
    group = stack_group(local, settled, NewInstancesProtectedFromScaleIn=True)
    assert settled.answer() is None
    autoscaling.delete_group(local.context, REGION, group, gone)
    assert "all remaining instances are protected from scale-in" in (gone.answer() or "")


def test_an_update_keeps_running_instances_and_the_capacity_it_does_not_name(local):
    settled, updated = Notified(), Notified()
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
