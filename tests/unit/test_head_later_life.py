"""The head's decisions about a cluster that is ready, case by case, without a clock or a cloud."""

from __future__ import annotations

from decisions import (
    LAUNCH_S,
    NO_CAPACITY,
    TIMEOUT_S,
    all_acknowledge,
    group,
    hear,
    machine,
    names,
    policy,
    publish,
    ready,
)

from phalanx.node.decision import (
    ACK_TIMEOUT_S,
    FIRST_BEAT_S,
    LAUNCH_ATTEMPTS,
    LOST_S,
    RENEW_S,
    SILENT_S,
    Prove,
    Publish,
    State,
    Succeed,
    decide,
)


class TestLaterLife:
    def test_nothing_happens_in_a_healthy_cluster(self):
        assert decide(ready(), policy(3, 1), 100) is None

    def test_certificates_are_renewed_at_half_time(self):
        assert decide(ready(), policy(3, 1), 10 + RENEW_S) is None
        action = decide(ready(), policy(3, 1), 11 + RENEW_S)
        assert isinstance(action, Publish)
        assert action.roster.generation == 2 and action.roster.revoked == ()

    def test_one_machine_alone_has_no_group_and_renews_all_the_same(self):
        made = ready(1)
        made.group = None
        assert publish(made, policy(1, 1), 11 + RENEW_S).roster.generation == 2

    def test_a_node_that_left_is_revoked_and_its_name_is_free(self):
        made = ready()
        made.group = group(3, at=20)
        action = publish(made, policy(3, 1), 21)
        assert [m.name for m in action.roster.missing] == ["deeplearning-worker2"]
        assert "i-2 was lost: " in action.roster.missing[0].reason
        assert action.roster.revoked == ("ssh-ed25519 AAAAhost2", "ssh-ed25519 AAAAuser2")
        assert names(action) == {"i-1": "deeplearning-worker1", "i-3": "deeplearning-worker3"}

    def test_a_node_with_a_notice_stays_a_member_on_which_no_job_begins(self):
        made = ready()
        made.leaving["i-2"] = "AWS takes it back"
        roster = publish(made, policy(3, 1), 21).roster
        assert [(one.name, one.reason) for one in roster.leaving] == [("deeplearning-worker2", "AWS takes it back")]
        assert len(roster.nodes) == 3
        assert [node.name for node in roster.workers] == ["deeplearning-worker1", "deeplearning-worker3"]
        assert decide(made, policy(3, 1), 22) is None

    def test_a_newcomer_with_the_name_of_a_node_that_left_after_its_notice_has_none(self):
        made = ready()
        made.leaving["i-2"] = "AWS takes it back"
        publish(made, policy(3, 1), 21)
        made.group = group(3, 4, at=30)
        hear(made, 4, at=31)
        roster = publish(made, policy(3, 1), 32).roster
        assert names(Publish(roster))["i-4"] == "deeplearning-worker2"
        assert roster.leaving == ()

    def test_all_nodes_leave_with_their_capacity_block(self):
        made = ready()
        made.all_leave = "EC2 clears the Capacity Block at 11:00 UTC"
        roster = publish(made, policy(3, 1), 21).roster
        assert (len(roster.leaving), roster.workers) == (3, ())

    def test_a_head_that_does_not_train_is_outside_of_the_block_and_stays(self):
        made = ready()
        made.me = made.me._replace(slots=0)
        head, *workers = made.roster.nodes
        made.roster = made.roster._replace(nodes=(head._replace(slots=0), *workers))
        made.all_leave = "EC2 clears the Capacity Block at 11:00 UTC"
        roster = publish(made, policy(3, 1), 21).roster
        assert [one.name for one in roster.leaving] == [node.name for node in workers]

    def test_a_newcomer_takes_over_its_predecessors_name(self):
        made = ready()
        made.group = group(3, 9, at=20)
        hear(made, 9, at=21)
        made.hellos["i-9"] = made.hellos["i-9"]._replace(head=True)
        action = publish(made, policy(3, 1), 22)
        assert names(action)["i-9"] == "deeplearning-worker2"
        assert [n.head for n in action.roster.nodes] == [True, False, False]
        assert action.roster.missing == ()
        made.acks["i-9"] = 2
        assert decide(made, policy(3, 1), 23) == Prove((made.roster.find("i-9"),))

    def test_a_newcomer_without_a_free_name_waits(self):
        made = ready()
        made.group = group(2, 3, 9, at=20)
        hear(made, 9, at=21)
        assert decide(made, policy(3, 1), 22) is None

    def test_a_beating_member_is_not_removed_for_a_missing_ack(self):
        made = ready()
        made.published_at, made.acks = 100.0, {}
        assert decide(made, policy(3, 1), 101 + ACK_TIMEOUT_S) is None

    def test_a_new_head_takes_over(self):
        """It is worker 1, makes new certificates for all nodes, and does not signal again."""
        made = State(machine(7), 0.0, roster=ready().roster, signalled=True)
        made.group = group(2, 3)
        action = publish(made, policy(3, 1), 3)
        assert names(action) == {
            "i-7": "deeplearning-worker1",
            "i-2": "deeplearning-worker2",
            "i-3": "deeplearning-worker3",
        }
        assert action.roster.head.instance_id == "i-7"
        assert action.roster.generation == 2 and action.roster.missing == ()
        assert "ssh-ed25519 AAAAhost1" in action.roster.revoked
        all_acknowledge(made)
        assert isinstance(decide(made, policy(3, 1), 4), Prove)

    def test_a_new_head_reads_the_group_first(self):
        made = State(machine(7), 0.0, roster=ready(2).roster, signalled=True)
        assert decide(made, policy(2, 1), 1) is None

    def test_a_new_head_misses_a_node_that_left_before_it_came(self):
        made = State(machine(7), 0.0, roster=ready().roster, signalled=True)
        made.group = group(2, at=0.5)
        assert [m.reason for m in publish(made, policy(3, 1), 1).roster.missing] == [
            "i-3 was lost: its machine is no longer in the group of nodes"
        ]

    def test_a_head_that_comes_back_before_the_signal_asks_for_acks_again(self):
        made = State(machine(1), 0.0, roster=ready().roster)
        made.group = group(2, 3)
        assert publish(made, policy(3, 1), 3).roster.generation == 2


class TestSilence:
    def silent(self) -> State:
        """A cluster of three in which i-2 beat for the last time at 100 s, and is silent."""
        made = ready()
        made.beats["10.0.1.12"] = 100.0
        publish(made, policy(3, 1), 101 + SILENT_S)
        return made

    def test_a_node_that_stops_beating_is_silent_and_keeps_name_and_keys(self):
        made = ready()
        made.beats["10.0.1.12"] = 100.0
        assert decide(made, policy(3, 1), 100 + SILENT_S) is None
        action = publish(made, policy(3, 1), 100.1 + SILENT_S)
        assert [n.name for n in action.roster.nodes] == ["deeplearning-worker1", "deeplearning-worker3"]
        assert [n.name for n in action.roster.silent] == ["deeplearning-worker2"]
        assert (action.roster.missing, action.roster.revoked) == ((), ())
        assert (action.lost, action.drop, action.request) == ((), (), None)
        assert decide(made, policy(3, 1), 100 + LOST_S) is None

    def test_a_silent_node_that_beats_again_is_the_same_member(self):
        made, before = self.silent(), ready().roster
        made.beats["10.0.1.12"] = 140.0
        after = publish(made, policy(3, 1), 141).roster
        assert before is not None and after == before._replace(generation=3)
        assert decide(made, policy(3, 1), 142) is None

    def test_a_node_that_stays_silent_is_lost_and_replaced(self):
        made = self.silent()
        action = publish(made, policy(3, 1), 100.1 + LOST_S)
        assert action.lost == ("i-2",) and action.drop == () and action.request is None
        assert [m.reason for m in action.roster.missing] == ["i-2 was lost: no sign of life for 120 s"]
        assert action.roster.revoked == ("ssh-ed25519 AAAAhost2", "ssh-ed25519 AAAAuser2")
        assert action.roster.silent == ()
        made.dropped |= set(action.lost)
        assert decide(made, policy(3, 1), 102 + LOST_S) is None

    def test_a_silent_node_that_ec2_reports_as_ended_is_replaced_at_once(self):
        made = self.silent()
        made.ended = {"i-2"}
        action = publish(made, policy(3, 1), 120)
        assert action.lost == ("i-2",) and action.drop == ()
        assert [m.reason for m in action.roster.missing] == ["i-2 was lost: its machine has ended"]
        assert action.roster.revoked == ("ssh-ed25519 AAAAhost2", "ssh-ed25519 AAAAuser2")

    def test_a_silent_node_that_auto_scaling_has_ended_is_missing(self):
        made = self.silent()
        made.group = group(3, at=118)
        action = publish(made, policy(3, 1), 119)
        assert [m.reason for m in action.roster.missing] == [
            "i-2 was lost: its machine is no longer in the group of nodes"
        ]
        assert (action.lost, action.drop, action.roster.silent) == ((), (), ())

    def test_no_newcomer_takes_the_name_of_a_silent_node(self):
        made = self.silent()
        made.group = group(2, 3, 9, at=118)
        hear(made, 9, at=118)
        assert decide(made, policy(3, 1), 119) is None
        assert names(publish(made, policy(4, 1), 120))["i-9"] == "deeplearning-worker4"

    def test_a_shrink_ends_a_silent_node_without_a_replacement(self):
        made = ready(4)
        made.beats["10.0.1.14"] = 100.0
        publish(made, policy(4, 1), 120)
        action = publish(made, policy(3, 1), 300)
        assert (action.drop, action.lost, action.request) == (("i-4",), (), 3)
        assert (action.roster.silent, action.roster.missing) == ((), ())

    def test_a_silent_node_that_comes_back_with_fewer_gpus_is_replaced(self):
        made = self.silent()
        made.failed["i-2"] = "only 7 of 8 GPUs work"
        action = publish(made, policy(3, 1), 119)
        assert (action.lost, action.drop, action.request) == (("i-2",), (), None)
        assert [m.reason for m in action.roster.missing] == ["only 7 of 8 GPUs work"]
        made.dropped |= set(action.lost)
        assert decide(made, policy(3, 1), 120) is None

    def test_a_member_that_fails_beyond_the_requested_number_is_not_replaced(self):
        made = self.silent()
        made.failed["i-3"] = "only 7 of 8 GPUs work"
        assert publish(made, policy(2, 1), 119).drop == ("i-3",)

    def test_a_replacement_that_was_never_usable_and_fails_is_not_replaced(self):
        """It would fail again and again."""
        made = self.silent()
        made.group = group(3, 9, at=118)
        hear(made, 9, at=118)
        publish(made, policy(3, 1), 119)
        made.failed["i-9"] = "i-9 refuses logins"
        action = publish(made, policy(3, 1), 120)
        assert (action.lost, action.drop) == ((), ("i-9",))

    def test_before_the_cluster_is_ready_only_an_end_counts(self):
        """A node that does not acknowledge is dropped sooner, by its own rule."""
        made = ready()
        made.signalled = False
        made.beats["10.0.1.12"] = 100.0
        assert decide(made, policy(3, 1), 100 + LOST_S) == Succeed()
        assert publish(made, policy(3, 1), 100.1 + LOST_S).lost == ("i-2",)

    def test_the_head_is_never_silent(self):
        made = ready()
        assert "10.0.1.11" not in made.beats
        assert decide(made, policy(3, 1), 5000) is None

    def test_a_node_that_never_beat_gets_time_to_find_the_head(self):
        made = ready()
        del made.beats["10.0.1.12"]
        assert decide(made, policy(3, 1), 1 + FIRST_BEAT_S) is None
        assert [n.instance_id for n in publish(made, policy(3, 1), 1.1 + FIRST_BEAT_S).roster.silent] == ["i-2"]
        assert decide(made, policy(3, 1), 1 + LOST_S) is None
        assert publish(made, policy(3, 1), 1.1 + LOST_S).lost == ("i-2",)

    def test_a_new_head_gives_every_node_time_to_find_it(self):
        made = State(machine(7), 0.0, roster=ready().roster, signalled=True)
        made.group = group(2, 3)
        publish(made, policy(3, 1), 1)
        assert decide(made, policy(3, 1), FIRST_BEAT_S) is None
        assert len(publish(made, policy(3, 1), 0.5 + FIRST_BEAT_S).roster.silent) == 2
        assert publish(made, policy(3, 1), 0.5 + LOST_S).lost == ("i-2", "i-3")

    def test_a_new_head_keeps_a_silent_node_silent_until_it_hears_it(self):
        made = State(machine(7), 200.0, roster=self.silent().roster, signalled=True)
        made.group = group(2, 3, at=201)
        assert [n.instance_id for n in publish(made, policy(3, 1), 202).roster.silent] == ["i-2"]
        made.beats["10.0.1.12"] = 203.0
        assert publish(made, policy(3, 1), 204).roster.silent == ()

    def test_a_silent_node_that_says_hello_again_is_a_member_with_its_first_beat(self):
        made = self.silent()
        made.heard["i-2"] = 118.0
        assert decide(made, policy(3, 1), 119) is None
        made.beats["10.0.1.12"] = 119.0
        assert publish(made, policy(3, 1), 120).roster.silent == ()

    def test_a_newcomer_at_a_dead_node_s_address_is_not_judged_by_its_beats(self):
        made = self.silent()
        made.ended = {"i-2"}
        made.dropped |= set(publish(made, policy(3, 1), 120).lost)
        made.group = group(3, 9, at=125)
        hear(made, 9, at=130)
        made.hellos["i-9"] = made.hellos["i-9"]._replace(address="10.0.1.12")
        assert names(publish(made, policy(3, 1), 131))["i-9"] == "deeplearning-worker2"
        all_acknowledge(made)
        made.proven |= {"i-9"}
        assert decide(made, policy(3, 1), 135) is None


class TestStrays:
    def test_a_replacement_that_fails_to_boot_is_ended_and_reported_once(self):
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
        assert publish(made, policy(3, 1), 21).drop == ()
        assert decide(made, policy(3, 1), 20 + TIMEOUT_S) is None
        action = publish(made, policy(3, 1), 21 + TIMEOUT_S)
        assert action.drop == ("i-9",)
        assert "i-9 never said hello in 600 s" in action.roster.missing[0].reason

    def test_an_instance_too_many_that_fails_to_boot_is_ended(self):
        made = ready()
        made.group = group(2, 3, 9, at=20)
        made.failed["i-9"] = "boot step 'mount' failed on i-9"
        action = publish(made, policy(3, 1), 21)
        assert action.drop == ("i-9",) and action.roster.missing == ()

    def test_a_replacement_that_can_not_be_launched_is_reported_with_auto_scalings_reason(self):
        made = ready()
        made.group = group(3, at=20)
        publish(made, policy(3, 1), 21)
        made.group = group(3, at=30, refusals=LAUNCH_ATTEMPTS)
        action = publish(made, policy(3, 1), 31)
        assert [m.reason for m in action.roster.missing] == [NO_CAPACITY]
        assert action.request is None
        assert decide(made, policy(3, 1), 32) is None

    def test_a_launch_of_a_replacement_that_failed_once_may_be_tried_again(self):
        made = ready()
        made.group = group(3, at=20)
        publish(made, policy(3, 1), 21)
        made.group = group(3, at=30, refusals=1, since=30)
        assert decide(made, policy(3, 1), 29 + LAUNCH_S) is None
        action = publish(made, policy(3, 1), 30 + LAUNCH_S)
        assert [m.reason for m in action.roster.missing] == [NO_CAPACITY]


class TestScale:
    def test_up_asks_for_more_and_takes_them_as_they_come(self):
        made = ready()
        action = publish(made, policy(5, 1), 20)
        assert action.request == 5 and action.roster.requested == 5
        assert [m.reason for m in action.roster.missing] == ["it is being launched"] * 2
        made.group = group(2, 3, 4, 5, at=21)
        hear(made, 4, at=22)
        assert names(publish(made, policy(5, 1), 23))["i-4"] == "deeplearning-worker4"
        hear(made, 5, at=24)
        assert publish(made, policy(5, 1), 25).roster.missing == ()

    def test_down_ends_the_highest_numbers(self):
        made = ready(4)
        action = publish(made, policy(2, 1), 20)
        assert action.drop == ("i-3", "i-4") and action.request == 2
        assert names(action) == {"i-1": "deeplearning-worker1", "i-2": "deeplearning-worker2"}
        assert action.roster.missing == () and action.roster.requested == 2
        assert set(action.roster.revoked) == {f"ssh-ed25519 AAAA{who}{n}" for who in ("host", "user") for n in (3, 4)}

    def test_to_the_head_alone(self):
        action = decide(ready(), policy(1, 1), 20)
        assert isinstance(action, Publish)
        assert len(action.roster.nodes) == 1 and action.request == 1
