"""How the head brings a cluster up, case by case, without a clock or a cloud."""

from __future__ import annotations

import pytest
import refusals
from decisions import (
    LAUNCH_S,
    NO_CAPACITY,
    TIMEOUT_S,
    group,
    hear,
    names,
    policy,
    publish,
    ready,
    state,
)

from phalanx.node.decision import (
    ACK_TIMEOUT_S,
    LAUNCH_ATTEMPTS,
    Fail,
    Group,
    Prove,
    Publish,
    Succeed,
    decide,
)


class TestGathering:
    def test_one_machine_alone_is_a_cluster(self):
        action = decide(state(), policy(1, 1), 0)
        assert isinstance(action, Publish)
        assert names(action) == {"i-1": "deeplearning-worker1"}
        assert action.roster.head.instance_id == "i-1"

    def test_all_have_answered(self):
        action = decide(state(4, 2, 3), policy(), 1)
        assert isinstance(action, Publish)
        assert names(action) == {f"i-{n}": f"deeplearning-worker{n}" for n in (1, 2, 3, 4)}
        assert action.roster.missing == () and action.request is None and action.drop == ()
        assert (action.roster.cluster, action.roster.requested, action.roster.minimum) == ("demo", 4, 2)

    def test_only_this_machine_is_the_head_whatever_a_hello_says(self):
        made = state(2, 3, 4)
        made.me = made.me._replace(head=False)
        made.hellos["i-3"] = made.hellos["i-3"]._replace(head=True)
        assert [n.head for n in publish(made, policy(), 1).roster.nodes] == [True, False, False, False]

    def test_an_instance_beyond_what_was_asked_for_is_not_awaited(self):
        made = state(2, 3, 4)
        made.group = group(2, 3, 4, 5)
        assert publish(made, policy(), 3).roster.missing == ()

    def test_missing_nodes_are_awaited(self):
        assert decide(state(), policy(), 0) is None
        assert decide(state(2, 3), policy(), TIMEOUT_S) is None

    def test_more_hellos_than_wanted_are_too_many(self):
        action = decide(state(2, 3, 4, 5), policy(), 1)
        assert isinstance(action, Publish)
        assert len(action.roster.nodes) == 4

    def test_a_node_in_the_group_is_waited_for_even_when_the_minimum_is_there(self):
        made = state(2, 3)
        made.group = group(2, 3, 4)
        assert decide(made, policy(), TIMEOUT_S) is None

    def test_a_silent_node_is_missing_after_its_time(self):
        made = state(2, 3)
        made.group = group(2, 3, 4, seen=5)
        assert decide(made, policy(), 5 + TIMEOUT_S) is None
        action = decide(made, policy(), 6 + TIMEOUT_S)
        assert isinstance(action, Publish)
        assert action.roster.missing[0].name == "deeplearning-worker4"
        assert "i-4 never said hello in 600 s" in action.roster.missing[0].reason
        assert action.drop == ("i-4",) and action.request == 3

    def test_the_time_of_a_late_launch_begins_when_it_is_seen(self):
        made = state(2, 3)
        made.group = Group(550.0, {"i-2": 1.0, "i-3": 1.0, "i-4": 550.0})
        assert decide(made, policy(), TIMEOUT_S + 500) is None
        assert isinstance(decide(made, policy(), TIMEOUT_S + 551), Publish)


class TestLaunchFailures:
    def test_auto_scaling_may_try_again(self):
        made = state(2, 3)
        made.group = group(2, 3, refusals=1, since=2)
        assert decide(made, policy(), 1 + LAUNCH_S) is None

    @pytest.mark.parametrize(
        ("refusals", "now"), [(LAUNCH_ATTEMPTS, 3.0), (1, 2 + LAUNCH_S)], ids=["attempts", "patience"]
    )
    def test_a_shortage_is_believed(self, refusals, now):
        made = state(2, 3)
        made.group = group(2, 3, refusals=refusals)
        action = decide(made, policy(), now)
        assert isinstance(action, Publish)
        assert [m.reason for m in action.roster.missing] == [NO_CAPACITY]
        assert action.request == 3 and action.drop == ()

    @pytest.mark.parametrize("refusal", refusals.FINAL)
    def test_what_no_other_attempt_can_pass_is_believed_at_once(self, refusal):
        made = state(2, 3)
        made.group = Group(2.0, {"i-2": 0.0, "i-3": 0.0}, (NO_CAPACITY, refusal), 2.0)
        assert isinstance(decide(made, policy(), 3), Publish)

    @pytest.mark.parametrize("refusal", refusals.PASSING)
    def test_what_may_pass_is_tried_again(self, refusal):
        made = state(2, 3)
        made.group = Group(2.0, {"i-2": 0.0, "i-3": 0.0}, (refusal,), 2.0)
        assert decide(made, policy(), 3) is None

    def test_below_the_minimum_it_fails_at_once(self):
        made = state(2)
        made.group = group(2, refusals=LAUNCH_ATTEMPTS)
        action = decide(made, policy(4, 3), 3)
        assert action == Fail(f"2 of 4 nodes, at least 3 are needed: {NO_CAPACITY}")

    def test_nodes_still_booting_count_as_possible(self):
        made = state(2)
        made.group = group(2, 3, refusals=LAUNCH_ATTEMPTS)
        assert decide(made, policy(4, 3), 3) is None
        hear(made, 3)
        assert isinstance(decide(made, policy(4, 3), 3), Publish)

    def test_one_node_that_still_boots_is_too_few_for_the_minimum(self):
        made = state()
        made.group = group(2, 3, 4)
        made.failed = {"i-2": "no disk", "i-3": "no network"}
        assert decide(made, policy(4, 3), 3) == Fail("1 of 4 nodes, at least 3 are needed: no disk; no network")

    def test_failures_of_launches_that_succeeded_later_do_not_matter(self):
        made = state(2, 3)
        made.group = group(2, 3, 4, refusals=9)
        assert decide(made, policy(), 100) is None

    def test_no_instance_and_no_reason_ends_with_the_timeout(self):
        made = state()
        made.group = group()
        made.started_at = 100.0
        assert decide(made, policy(), 100 + TIMEOUT_S) is None
        action = decide(made, policy(), 101 + TIMEOUT_S)
        assert isinstance(action, Fail)
        assert "launched no instance" in action.reason


class TestFailedBoots:
    def test_the_rest_goes_ahead(self):
        made = state(2, 3)
        made.group = group(2, 3, 4)
        made.failed["i-4"] = "boot step 'mount' failed on i-4"
        action = decide(made, policy(), 3)
        assert isinstance(action, Publish)
        assert [m.reason for m in action.roster.missing] == ["boot step 'mount' failed on i-4"]
        assert action.drop == ("i-4",)

    def test_below_the_minimum_it_fails_at_once(self):
        made = state()
        made.failed["i-2"] = "boot step 'mount' failed on i-2"
        action = decide(made, policy(3, 3), 3)
        assert action == Fail("1 of 3 nodes, at least 3 are needed: boot step 'mount' failed on i-2")

    def test_failure_after_hello_takes_the_node_away(self):
        made = state(2, 3, 4)
        made.failed["i-3"] = "no"
        made.group = group(2, 3, 4)
        action = decide(made, policy(), 3)
        assert isinstance(action, Publish)
        assert "i-3" not in names(action)

    def test_the_same_reason_is_reported_once(self):
        made = state()
        made.failed.update({"i-2": "no disk", "i-3": "no disk"})
        action = decide(made, policy(3, 2), 3)
        assert isinstance(action, Fail)
        assert action.reason.count("no disk") == 1


class TestStaleReadings:
    @pytest.mark.parametrize("at", [4.0, 5.0])
    def test_a_hello_no_older_than_the_reading_counts(self, at):
        made = state(2, 3, 4, at=at)
        made.group = group(2, 3, at=4.0)
        assert isinstance(decide(made, policy(), 6), Publish)

    def test_a_node_that_left_the_group_does_not_count(self):
        made = state(2, 3, 4, at=1.0)
        made.group = group(2, 3, at=4.0)
        assert decide(made, policy(), 6) is None


class TestConclusion:
    def test_acks_then_proof_then_success_then_nothing(self):
        made = state(2, 3, 4)
        action = publish(made, policy(), 1)
        made.acks.update({"i-2": 1, "i-3": 1})
        assert decide(made, policy(), 2) is None
        made.group = group(2, 3, 4, at=2)
        assert decide(made, policy(), 2) is None
        made.acks["i-4"] = 1
        assert decide(made, policy(), 2) == Prove(action.roster.nodes)
        made.proven = set(made.acks)
        assert decide(made, policy(), 2) == Succeed()
        made.signalled = True
        assert decide(made, policy(), 2) is None

    def test_an_ack_of_an_older_generation_does_not_count(self):
        made = ready()
        made.signalled = False
        made.proven.clear()
        made.published_at = None
        publish(made, policy(3, 1), 20)
        assert decide(made, policy(3, 1), 21) is None

    def test_a_node_that_does_not_acknowledge_is_left_out(self):
        made = state(2, 3, 4)
        publish(made, policy(), 1)
        made.group = group(2, 3, 4)
        made.acks.update({"i-2": 1, "i-3": 1})
        assert decide(made, policy(), 1 + ACK_TIMEOUT_S) is None
        action = decide(made, policy(), 2 + ACK_TIMEOUT_S)
        assert isinstance(action, Publish)
        assert action.roster.generation == 2
        assert "did not acknowledge generation 1" in action.roster.missing[0].reason
        assert action.roster.revoked == ("ssh-ed25519 AAAAhost4", "ssh-ed25519 AAAAuser4")
        assert action.drop == ("i-4",)

    def test_too_few_that_can_be_proven_is_a_failure(self):
        made = state(2)
        publish(made, policy(2, 2), 1)
        made.group = group(2)
        made.failed["i-2"] = "ssh failed"
        action = decide(made, policy(2, 2), 2)
        assert action == Fail("1 of 2 nodes, at least 2 are needed: ssh failed")

    def test_a_loss_that_leaves_the_minimum_is_no_failure(self):
        made = state(2, 3)
        publish(made, policy(3, 2), 1)
        made.group = group(2, 3)
        made.failed["i-3"] = "ssh failed"
        assert names(publish(made, policy(3, 2), 2)) == {"i-1": "deeplearning-worker1", "i-2": "deeplearning-worker2"}

    def test_to_be_scaled_below_the_minimum_before_it_is_ready_is_a_failure(self):
        made = state(2)
        publish(made, policy(2, 2), 1)
        made.group = group(2)
        assert decide(made, policy(1, 2), 2) == Fail("1 of 1 nodes, at least 2 are needed: no reason known")

    def test_after_a_failure_nothing_more_happens(self):
        made = state()
        made.failed["i-2"] = "no"
        made.signalled = True
        assert decide(made, policy(2, 2), 3) is None
