"""Stacks with a cloud in memory: events once, nodes as they answer, failures explained, deletions verified."""

from __future__ import annotations

import pytest
from error_codes import raises_code
from fake_cloud import HEAD_FAILED, MISSING, READY, STACK, FakeAws, event, noted, roster

from phalanx.aws import stacks
from phalanx.aws.model import Resource, StackEvent
from phalanx.cluster.deletion import GROUP, Deletion, others_in
from phalanx.cluster.stack import Creation, ForeignDeleted, Leftovers, NodeAnswered, NodeMissing, Stack
from phalanx.errors import CloudError


def asked_for(cloud):
    return Stack(cloud, "demo", stacks.create(cloud, "demo", "{}", {}))


def test_each_event_is_reported_once_and_in_order():
    steps = list(Creation(asked_for(FakeAws())).steps())
    shown = [step.event_id for step in steps if isinstance(step, StackEvent)]
    assert shown == [event.event_id for event in READY]


def test_nodes_are_reported_as_they_answer_and_missing_ones_with_their_reason():
    cloud = FakeAws(roster=roster(2, missing=[MISSING]))
    steps = list(Creation(asked_for(cloud)).steps())
    answered = [step for step in steps if isinstance(step, NodeAnswered)]
    assert [(step.name, step.answered, step.requested) for step in answered] == [
        ("deeplearning-worker1", 1, 3),
        ("deeplearning-worker2", 2, 3),
    ]
    assert NodeMissing("deeplearning-worker3", "InsufficientInstanceCapacity") in steps


def failure_of(script):
    creation = Creation(asked_for(FakeAws(script=script)))
    assert list(creation.steps())
    assert not creation.ready
    return creation.failure()


def test_a_failure_is_reported_with_the_heads_message():
    assert failure_of(HEAD_FAILED) == "boot script failed: `false` ended with 1"


def test_the_first_failure_counts_and_not_what_was_cancelled_for_it():
    script = [
        event(1, "Nat", "CREATE_FAILED", "AWS::EC2::NatGateway", "Resource creation cancelled"),
        event(2, "FileSystem", "CREATE_FAILED", "AWS::EFS::FileSystem", "quota of file systems reached"),
        event(3, "demo", "ROLLBACK_COMPLETE", STACK),
    ]
    assert "FileSystem (AWS::EFS::FileSystem): quota of file systems reached" in failure_of(script)


def test_a_wait_ends_and_says_what_it_waited_for():
    stack = asked_for(FakeAws(script=READY[:2]))
    with raises_code("cloud-timeout", "stack demo", "CREATE_IN_PROGRESS") as caught:
        list(Creation(stack, deadline_s=0).steps())
    assert "Run the same command" in caught.value.hint


def test_a_deletion_waits_until_nothing_is_left_and_removes_the_retained_log_group():
    cloud = FakeAws(script=[*HEAD_FAILED], left=[["instance i-1 (shutting-down)"], []])
    stack = asked_for(cloud)
    steps = list(Deletion(stack).steps())
    assert steps[-1] == Leftovers(("instance i-1 (shutting-down)",))
    assert cloud.state(stack.stack_id).status == "DELETE_COMPLETE"
    assert cloud.left == []
    assert cloud.deleted_groups == ["physical-LogGroup"]


def test_what_only_the_events_name_after_a_rollback_is_removed_and_must_be_gone():
    class Forgetful(FakeAws):
        def list_stack_resources(self, StackName):
            return {"StackResourceSummaries": []}

    cloud = Forgetful(script=[event(1, "LogGroup", "CREATE_COMPLETE", "AWS::Logs::LogGroup"), *HEAD_FAILED])
    list(Deletion(asked_for(cloud)).steps())
    assert cloud.deleted_groups == ["physical-LogGroup"]


def test_what_a_stack_could_not_make_may_be_another_s_and_is_not_touched():
    class Forgetful(FakeAws):
        def list_stack_resources(self, StackName):
            return {"StackResourceSummaries": []}

    taken = event(1, "LogGroup", "CREATE_FAILED", "AWS::Logs::LogGroup", "physical-LogGroup already exists")
    cloud = Forgetful(script=[taken, event(2, "demo", "ROLLBACK_COMPLETE", STACK)])
    list(Deletion(asked_for(cloud)).steps())
    assert cloud.deleted_groups == []


def test_all_machines_end_at_once_before_cloudformation_deletes_one_group_after_another():
    sized = []
    cloud = FakeAws(script=[*READY, event(6, "WorkersGroup", "CREATE_COMPLETE", GROUP)])
    cloud.update_auto_scaling_group = lambda **given: sized.append(given)
    list(Deletion(asked_for(cloud)).steps())
    assert sized == [
        {"AutoScalingGroupName": f"physical-{group}", "MinSize": 0, "DesiredCapacity": 0}
        for group in ("HeadGroup", "WorkersGroup")
    ]


def test_what_is_left_is_named():
    cloud = FakeAws(poll_interval_s=0.01, left=[["instance i-1 (running)"]] * 1000)
    with raises_code("cloud-timeout", "demo to be deleted", "instance i-1"):
        list(Deletion(asked_for(cloud), proof_s=0.2).steps())


def test_a_stack_that_can_t_be_deleted_is_tried_twice_and_its_resources_named():
    class Stubborn(FakeAws):
        tries = 0

        def delete_stack(self, StackName):
            super().delete_stack(StackName)
            self.tries += 1
            stack = self.stacks[StackName]
            number = len(stack.script)
            failed = event(number + 10, "Subnet", "DELETE_FAILED", "AWS::EC2::Subnet", "has dependencies")
            stack.script[-2:] = [failed, event(number + 11, "demo", "DELETE_FAILED", STACK)]

    cloud = Stubborn()
    with pytest.raises(CloudError, match=r"Subnet \(physical-Subnet\): has dependencies"):
        list(Deletion(asked_for(cloud)).steps())
    assert cloud.tries == 2


class BlockedOnce(FakeAws):
    """Its stacks can't be deleted before what GuardDuty made in their VPC is gone."""

    def list_stack_resources(self, StackName):
        return {"StackResourceSummaries": [noted(event(1, "Vpc", "CREATE_COMPLETE"))]}

    def delete_stack(self, StackName):
        super().delete_stack(StackName)
        if self.guard_duty or self.others:
            stack = self.stacks[StackName]
            number = len(stack.script)
            failed = event(number + 10, "Vpc", "DELETE_FAILED", "AWS::EC2::VPC", "has dependencies")
            stack.script[-2:] = [failed, event(number + 11, "demo", "DELETE_FAILED", STACK)]


def test_what_guard_duty_made_in_the_vpc_is_deleted_before_the_second_try():
    cloud = BlockedOnce(guard_duty=[["vpce-1"], ["vpce-1"]])
    steps = list(Deletion(asked_for(cloud)).steps())
    assert [step for step in steps if isinstance(step, ForeignDeleted)] == [
        ForeignDeleted(("VPC endpoint vpce-1 (aws.guardduty-data)",))
    ]
    assert cloud.guard_duty == []


def test_what_others_made_in_the_vpc_is_named():
    cloud = BlockedOnce(others={"eni-1": "made by hand"})
    with raises_code("not-deleted", "network interface eni-1 (made by hand)"):
        list(Deletion(asked_for(cloud)).steps())


def test_a_stack_from_the_console_has_no_tag_and_does_not_call_its_own_resources_foreign():
    cloud = FakeAws(others={"eni-1": "by hand"}, groups={"sg-1": "console-NodeSecurityGroup"})
    made = [Resource("Vpc", "vpc-1", "AWS::EC2::VPC"), Resource("Nodes", "sg-1", "AWS::EC2::SecurityGroup")]
    assert others_in(cloud, "console", made) == ["network interface eni-1 (by hand)"]
