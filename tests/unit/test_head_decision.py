"""What the head does next, case by case, without a clock or a cloud."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.node.decision import (
    ACK_TIMEOUT_S,
    FIRST_BEAT_S,
    LAUNCH_ATTEMPTS,
    LAUNCH_PATIENCE_S,
    LOST_S,
    RENEW_S,
    Fail,
    Group,
    Policy,
    Prove,
    Publish,
    State,
    Succeed,
    decide,
)
from phalanx.node.roster import Node

TIMEOUT_S = 600.0
ALWAYS = float("inf")
NO_CAPACITY = "We currently do not have sufficient c5.large capacity"


def machine(number: int) -> Node:
    return Node(
        name="",
        instance_id=f"i-{number}",
        address=f"10.0.1.{10 + number}",
        hostname=f"ip-10-0-1-{10 + number}",
        zone="z",
        type="c5.large",
        gpus=0,
        slots=2,
        head=number == 1,
        host_key=f"host{number}",
        user_key=f"user{number}",
    )


def policy(nodes: int = 4, minimum: int = 2) -> Policy:
    return Policy("demo", nodes, minimum, TIMEOUT_S)


def state(*answered: int, at: float = 1.0) -> State:
    made = State(machine(1), 0.0)
    for number in answered:
        hear(made, number, at)
    return made


def hear(made: State, number: int, at: float = 1.0) -> None:
    made.hellos[f"i-{number}"] = replace(machine(number), head=False)
    made.heard[f"i-{number}"] = at
    made.beats[machine(number).address] = ALWAYS


def group(*numbers: int, at: float = 2.0, seen: float = 0.0, refusals: int = 0, since: float = 2.0) -> Group:
    return Group(at, {f"i-{n}": seen for n in numbers}, (NO_CAPACITY,) * refusals, since)


def publish(made: State, wish: Policy, now: float) -> Publish:
    """Decide, expect a roster, and take it over as the head does."""
    action = decide(made, wish, now)
    assert isinstance(action, Publish)
    made.roster, made.published_at = action.roster, now
    made.acks[made.me.instance_id] = action.roster.generation
    return action


def all_acknowledge(made: State) -> None:
    assert made.roster is not None
    made.acks.update({n.instance_id: made.roster.generation for n in made.roster.nodes})


def ready(nodes: int = 3) -> State:
    """A cluster that has signalled success at second 10."""
    made = state(*range(2, nodes + 1))
    publish(made, policy(nodes, 1), 10)
    all_acknowledge(made)
    made.proven = {n.instance_id for n in made.roster.nodes} if made.roster else set()
    made.signalled = True
    made.group = group(*range(2, nodes + 1), at=11)
    return made


def names(action: Publish) -> dict[str, str]:
    return {n.instance_id: n.name for n in action.roster.nodes}


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
        assert action.roster.missing == () and action.desired is None and action.drop == ()

    def test_no_news_is_waited_for(self):
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
        assert action.drop == ("i-4",) and action.desired == 2

    def test_the_time_of_a_late_launch_begins_when_it_is_seen(self):
        made = state(2, 3)
        made.group = Group(550.0, {"i-2": 1.0, "i-3": 1.0, "i-4": 550.0})
        assert decide(made, policy(), TIMEOUT_S + 500) is None
        assert isinstance(decide(made, policy(), TIMEOUT_S + 551), Publish)


class TestLaunchFailures:
    def test_auto_scaling_may_try_again(self):
        made = state(2, 3)
        made.group = group(2, 3, refusals=1)
        assert decide(made, policy(), 3) is None

    @pytest.mark.parametrize(
        ("refusals", "now"), [(LAUNCH_ATTEMPTS, 3.0), (1, 2 + LAUNCH_PATIENCE_S)], ids=["attempts", "patience"]
    )
    def test_a_shortage_is_believed(self, refusals, now):
        made = state(2, 3)
        made.group = group(2, 3, refusals=refusals)
        action = decide(made, policy(), now)
        assert isinstance(action, Publish)
        assert [m.reason for m in action.roster.missing] == [NO_CAPACITY]
        assert action.desired == 2 and action.drop == ()

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

    def test_failures_of_launches_that_succeeded_later_do_not_matter(self):
        made = state(2, 3)
        made.group = group(2, 3, 4, refusals=9)
        assert decide(made, policy(), 100) is None

    def test_no_instance_and_no_word_ends_with_the_timeout(self):
        made = state()
        made.group = group()
        assert decide(made, policy(), TIMEOUT_S) is None
        action = decide(made, policy(), TIMEOUT_S + 1)
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

    def test_the_same_reason_is_told_once(self):
        made = state()
        made.failed.update({"i-2": "no disk", "i-3": "no disk"})
        action = decide(made, policy(3, 2), 3)
        assert isinstance(action, Fail)
        assert action.reason.count("no disk") == 1


class TestStaleReadings:
    def test_a_hello_newer_than_the_reading_counts(self):
        made = state(2, 3, 4, at=5.0)
        made.group = group(2, 3, at=4.0)
        assert isinstance(decide(made, policy(), 6), Publish)

    def test_who_left_the_group_does_not_count(self):
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

    def test_an_ack_of_an_older_generation_is_none(self):
        made = ready()
        made.signalled = False
        made.proven.clear()
        made.published_at = None
        publish(made, policy(3, 1), 20)
        assert decide(made, policy(3, 1), 21) is None

    def test_who_does_not_acknowledge_is_left_out(self):
        made = state(2, 3, 4)
        publish(made, policy(), 1)
        made.group = group(2, 3, 4)
        made.acks.update({"i-2": 1, "i-3": 1})
        action = decide(made, policy(), 2 + ACK_TIMEOUT_S)
        assert isinstance(action, Publish)
        assert action.roster.generation == 2
        assert "did not acknowledge generation 1" in action.roster.missing[0].reason
        assert action.roster.revoked == ("host4", "user4")
        assert action.drop == ("i-4",)

    def test_too_few_that_can_be_proven_is_a_failure(self):
        made = state(2)
        publish(made, policy(2, 2), 1)
        made.group = group(2)
        made.failed["i-2"] = "ssh failed"
        action = decide(made, policy(2, 2), 2)
        assert action == Fail("1 of 2 nodes, at least 2 are needed: ssh failed")

    def test_after_a_failure_nothing_more_happens(self):
        made = state()
        made.failed["i-2"] = "no"
        made.signalled = True
        assert decide(made, policy(2, 2), 3) is None


class TestLaterLife:
    def test_quiet_days(self):
        assert decide(ready(), policy(3, 1), 100) is None

    def test_certificates_are_renewed_at_half_time(self):
        action = decide(ready(), policy(3, 1), 11 + RENEW_S)
        assert isinstance(action, Publish)
        assert action.roster.generation == 2 and action.roster.revoked == ()

    def test_who_left_is_revoked_and_its_name_is_free(self):
        made = ready()
        made.group = group(3, at=20)
        action = publish(made, policy(3, 1), 21)
        assert [m.name for m in action.roster.missing] == ["deeplearning-worker2"]
        assert "i-2 left the group" in action.roster.missing[0].reason
        assert action.roster.revoked == ("host2", "user2")
        assert names(action) == {"i-1": "deeplearning-worker1", "i-3": "deeplearning-worker3"}

    def test_a_newcomer_takes_over_its_predecessors_name(self):
        made = ready()
        made.group = group(3, 9, at=20)
        hear(made, 9, at=21)
        action = publish(made, policy(3, 1), 22)
        assert names(action)["i-9"] == "deeplearning-worker2"
        assert action.roster.missing == ()
        made.acks["i-9"] = 2
        assert decide(made, policy(3, 1), 23) == Prove((made.roster.find("i-9"),))

    def test_a_newcomer_without_a_free_name_waits(self):
        made = ready()
        made.group = group(2, 3, 9, at=20)
        hear(made, 9, at=21)
        assert decide(made, policy(3, 1), 22) is None

    def test_a_member_that_beats_is_not_thrown_out_for_an_ack(self):
        made = ready()
        made.published_at, made.acks = 100.0, {}
        assert decide(made, policy(3, 1), 101 + ACK_TIMEOUT_S) is None

    def test_a_new_head_takes_over(self):
        """It is worker 1, makes certificates anew for everybody, and does not signal again."""
        made = State(replace(machine(7), head=True), 0.0, roster=ready().roster, signalled=True)
        assert decide(made, policy(3, 1), 1) is None
        made.group = group(2, 3)
        action = publish(made, policy(3, 1), 3)
        assert names(action) == {
            "i-7": "deeplearning-worker1",
            "i-2": "deeplearning-worker2",
            "i-3": "deeplearning-worker3",
        }
        assert action.roster.generation == 2 and action.roster.missing == ()
        assert "host1" in action.roster.revoked
        all_acknowledge(made)
        assert isinstance(decide(made, policy(3, 1), 4), Prove)

    def test_a_head_that_comes_back_before_the_signal_asks_for_acks_again(self):
        made = State(machine(1), 0.0, roster=ready().roster)
        made.group = group(2, 3)
        assert publish(made, policy(3, 1), 3).roster.generation == 2


class TestSilence:
    def test_who_beats_no_more_is_lost_and_replaced(self):
        made = ready()
        made.beats["10.0.1.12"] = 100.0
        assert decide(made, policy(3, 1), 100 + LOST_S) is None
        action = publish(made, policy(3, 1), 101 + LOST_S)
        assert action.lost == ("i-2",) and action.drop == () and action.desired is None
        assert [m.reason for m in action.roster.missing] == ["i-2 was silent for 15 s"]
        assert action.roster.revoked == ("host2", "user2")
        made.dropped |= set(action.lost)
        assert decide(made, policy(3, 1), 102 + LOST_S) is None

    def test_who_never_beat_gets_time_to_hear_of_the_head(self):
        made = ready()
        del made.beats["10.0.1.12"]
        assert decide(made, policy(3, 1), 1 + FIRST_BEAT_S) is None
        assert isinstance(decide(made, policy(3, 1), 2 + FIRST_BEAT_S), Publish)

    def test_a_newcomer_at_a_dead_node_s_address_is_not_judged_by_its_beats(self):
        made = ready()
        made.beats["10.0.1.12"] = 100.0
        made.dropped |= set(publish(made, policy(3, 1), 120).lost)
        made.group = group(3, 9, at=125)
        hear(made, 9, at=130)
        made.hellos["i-9"] = replace(made.hellos["i-9"], address="10.0.1.12")
        assert names(publish(made, policy(3, 1), 131))["i-9"] == "deeplearning-worker2"
        all_acknowledge(made)
        made.proven |= {"i-9"}
        assert decide(made, policy(3, 1), 135) is None


class TestStrays:
    def test_a_replacement_that_fails_to_boot_is_ended_and_told_once(self):
        made = ready()
        made.group = group(3, 9, at=20)
        publish(made, policy(3, 1), 21)
        made.failed["i-9"] = "boot step 'mount' failed on i-9"
        action = publish(made, policy(3, 1), 22)
        assert action.drop == ("i-9",) and action.lost == ()
        assert [m.reason for m in action.roster.missing] == ["boot step 'mount' failed on i-9"]
        made.dropped |= set(action.drop)
        assert decide(made, policy(3, 1), 23) is None

    def test_a_replacement_that_never_says_hello_is_ended(self):
        made = ready()
        made.group = group(3, 9, at=20, seen=20)
        publish(made, policy(3, 1), 21)
        action = publish(made, policy(3, 1), 21 + TIMEOUT_S)
        assert action.drop == ("i-9",)
        assert "i-9 never said hello in 600 s" in action.roster.missing[0].reason

    def test_a_replacement_that_can_not_be_launched_is_told_in_auto_scaling_s_words(self):
        made = ready()
        made.group = group(3, at=20)
        publish(made, policy(3, 1), 21)
        made.group = group(3, at=30, refusals=LAUNCH_ATTEMPTS)
        action = publish(made, policy(3, 1), 31)
        assert [m.reason for m in action.roster.missing] == [NO_CAPACITY]
        assert action.desired is None
        assert decide(made, policy(3, 1), 32) is None


class TestScale:
    def test_up_asks_for_more_and_takes_them_as_they_come(self):
        made = ready()
        action = publish(made, policy(5, 1), 20)
        assert action.desired == 4 and action.roster.requested == 5
        assert [m.reason for m in action.roster.missing] == ["it is being launched"] * 2
        made.group = group(2, 3, 4, 5, at=21)
        hear(made, 4, at=22)
        assert names(publish(made, policy(5, 1), 23))["i-4"] == "deeplearning-worker4"
        hear(made, 5, at=24)
        assert publish(made, policy(5, 1), 25).roster.missing == ()

    def test_down_ends_the_highest_numbers(self):
        made = ready(4)
        action = publish(made, policy(2, 1), 20)
        assert action.drop == ("i-3", "i-4") and action.desired == 1
        assert names(action) == {"i-1": "deeplearning-worker1", "i-2": "deeplearning-worker2"}
        assert action.roster.missing == () and action.roster.requested == 2
        assert set(action.roster.revoked) == {"host3", "user3", "host4", "user4"}

    def test_to_the_head_alone(self):
        action = decide(ready(), policy(1, 1), 20)
        assert isinstance(action, Publish)
        assert len(action.roster.nodes) == 1 and action.desired == 0


Told = tuple[str, int]


@settings(max_examples=100, deadline=None)
@given(
    order=st.permutations([(kind, n) for kind in ("hello", "look") for n in (2, 3, 4)]),
    again=st.lists(st.sampled_from([(kind, n) for kind in ("hello", "look") for n in (2, 3, 4)]), max_size=6),
    lost=st.sets(st.sampled_from([("hello", n) for n in (2, 3, 4)])),
)
def test_lost_late_and_repeated_messages_change_nothing(order, again, lost):
    """Whatever comes in whatever order, some of it twice, some only at the next try: the same roster in the end."""
    made, wish = State(machine(1), 0.0), policy()
    tries: list[Told] = [*(told for told in order if told not in lost), *again, *sorted(lost), *again]
    for at, (kind, number) in enumerate(tries, 1):
        if kind == "hello":
            hear(made, number, at=float(at))
        else:
            made.group = group(2, 3, 4, at=float(at))
        if isinstance(decide(made, wish, float(at)), Publish):
            publish(made, wish, float(at))
    assert made.roster is not None and made.roster.generation == 1
    found = {n.instance_id: n.name for n in made.roster.nodes}
    assert found == {f"i-{n}": f"deeplearning-worker{n}" for n in (1, 2, 3, 4)}
    assert made.roster.missing == () and made.roster.revoked == ()


@settings(max_examples=150, deadline=None)
@given(
    answered=st.sets(st.integers(2, 9)),
    launched=st.sets(st.integers(2, 9)),
    failed=st.sets(st.integers(2, 9)),
    refusals=st.integers(0, 5),
    wanted=st.integers(1, 8),
    minimum=st.integers(1, 8),
    now=st.sampled_from([1.0, 40.0, 700.0]),
)
def test_every_beginning_ends(answered, launched, failed, refusals, wanted, minimum, now):
    """Never below the minimum nor above what was asked; each missing node has a reason; no waiting for ever."""
    wish = policy(wanted, min(minimum, wanted))
    made = state(*answered, at=3.0)
    made.group = group(*launched, refusals=refusals)
    made.failed = {f"i-{n}": f"boot failed on i-{n}" for n in failed}
    action = decide(made, wish, now)
    if isinstance(action, Publish):
        nodes = action.roster.nodes
        assert wish.minimum <= len(nodes) <= wish.nodes
        assert len(nodes) + len(action.roster.missing) == wish.nodes
        assert all(m.reason for m in action.roster.missing)
        assert not {n.instance_id for n in nodes} & (set(made.failed) | set(action.drop))
        assert [n.name for n in nodes] == [f"deeplearning-worker{i}" for i in range(1, len(nodes) + 1)]
    elif isinstance(action, Fail):
        assert f"at least {wish.minimum} are needed" in action.reason
        assert "no reason known" not in action.reason
    else:
        assert action is None and now <= TIMEOUT_S
