"""A head takes its workers in: with real keys and files, and with the queue, the table and the group in memory."""

from __future__ import annotations

import json
import time

import pytest
from cluster_in_memory import ROLE, Keys, Memory, a_memory, an_agent, keys_of_four, says_hello, turn

from phalanx.node import validate, worker
from phalanx.node.decision import SILENT_S
from phalanx.node.head import Head
from phalanx.node.roster import Roster
from phalanx.node.services import Reading, Refusal


@pytest.fixture
def memory(monkeypatch) -> Memory:
    return a_memory(monkeypatch)


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Keys:
    return keys_of_four(tmp_path_factory.mktemp("keys"))


def test_from_hello_to_success(memory, keys, tmp_path):
    master = Head(an_agent(memory, keys, tmp_path, 1))
    workers = [an_agent(memory, keys, tmp_path, n) for n in (2, 3, 4)]
    master.restore()
    assert memory.requested == [4]
    memory.reading = Reading(tuple(w.describe().instance_id for w in workers), ())
    for agent in (*workers, workers[0]):
        says_hello(agent)
    turn(master)
    assert memory.items["generation"]["number"] == 1 and not memory.items["generation"]["ready"]
    assert len(memory.deleted) == 4
    assert all(worker.follow(agent, agent.describe()) for agent in workers)
    turn(master)
    ((status, text),) = memory.signals
    assert status == "SUCCESS"
    assert json.loads(text) == {"requested": 4, "launched": 4, "generation": 1, "missing": []}
    assert memory.items["generation"]["ready"]
    listed = (tmp_path / "3/opt/deeplearning/workers").read_text().split()
    assert listed == [f"deeplearning-worker{n}" for n in (1, 2, 3, 4)]
    turn(master)
    assert len(memory.signals) == 1


def test_a_shortage_shrinks_the_group_and_is_reported_with_its_reason(memory, keys, tmp_path):
    master = Head(an_agent(memory, keys, tmp_path, 1))
    two = an_agent(memory, keys, tmp_path, 2)
    refusals = tuple(Refusal(f"cause {n}", "no sufficient capacity") for n in range(3))
    memory.reading = Reading((two.describe().instance_id,), refusals)
    says_hello(two)
    turn(master)
    assert memory.requested == [2]
    assert memory.logged.count("Auto Scaling: no sufficient capacity") == 3
    assert two.nodes == 4
    worker.follow(two, two.describe())
    assert two.nodes == 2, "it polls as often as one worker may"
    turn(master)
    missing = json.loads(memory.signals[0][1])["missing"]
    assert [m["reason"] for m in missing] == ["no sufficient capacity"] * 2


def test_a_boot_that_fails_below_the_minimum_ends_the_cluster(memory, keys, tmp_path):
    master = Head(an_agent(memory, keys, tmp_path, 1, nodes=2))
    two = an_agent(memory, keys, tmp_path, 2)
    memory.reading = Reading((two.describe().instance_id,), ())
    two.report("failed", step="boot script", command="the boot script", exit=9, output="no such package")
    turn(master)
    ((status, text),) = memory.signals
    assert status == "FAILURE" and "no such package" in text and "at least 2 are needed" in text
    turn(master)
    assert len(memory.signals) == 1


def test_an_invalid_message_changes_nothing(memory, keys, tmp_path):
    master = Head(an_agent(memory, keys, tmp_path, 1))
    memory.sent += ["no json", "[]", "null", {"kind": "hello"}, {"kind": "ack"}, {"kind": "failed"}, {"kind": "?"}]
    memory.sent += [{"Type": "Notification", "Message": "{}"}]
    turn(master)
    assert (master.state.hellos, master.state.acks, master.state.failed) == ({}, {}, {})
    assert len(memory.deleted) == 8


def hello_of(agent, **changes) -> dict:
    """Build a hello of this node with changes."""
    says_hello(agent)
    return {**agent.queue.sent.pop(), **changes}


def test_a_message_speaks_for_its_sender_alone(memory, keys, tmp_path):
    master = Head(an_agent(memory, keys, tmp_path, 1))
    two, three = (an_agent(memory, keys, tmp_path, n) for n in (2, 3))
    memory.reading = Reading(("i-2", "i-3"), ())
    for sender in (f"{ROLE}:i-2", "AROAANOTHERROLE000000:i-3", "AIDAIT2UOQQY3AUEKVGXU", "123456789012", "", "i-3"):
        memory.sent += [
            hello_of(three, sender=sender),
            {"kind": "ack", "instance_id": "i-3", "generation": 9, "sender": sender},
            {
                "kind": "failed",
                "instance_id": "i-3",
                "step": "",
                "command": "",
                "exit": 1,
                "output": "",
                "sender": sender,
            },
        ]
    turn(master)
    turn(master)
    assert (master.state.hellos, master.state.acks, master.state.failed) == ({}, {}, {})
    assert len(memory.deleted) == 18
    assert memory.logged[-1].startswith("16 messages were not believed, the last: ")
    says_hello(two)
    turn(master)
    assert list(master.state.hellos) == ["i-2"]


def test_a_newcomer_is_believed_once_auto_scaling_and_ec2_know_it(memory, keys, tmp_path):
    master = Head(an_agent(memory, keys, tmp_path, 1))
    two = an_agent(memory, keys, tmp_path, 2)
    memory.known.clear()
    says_hello(two)
    turn(master)
    memory.reading = Reading(("i-2",), ())
    turn(master)
    assert master.state.hellos == {}, "EC2 has no address for it"
    memory.known["i-2"] = "10.0.1.12"
    turn(master)
    assert list(master.state.hellos) == ["i-2"]
    assert memory.logged[-1] == "hello from i-2 at 10.0.1.12"


def test_a_node_that_claims_another_address_is_not_believed(memory, keys, tmp_path):
    master = Head(an_agent(memory, keys, tmp_path, 1))
    two = an_agent(memory, keys, tmp_path, 2)
    memory.reading = Reading(("i-2",), ())
    memory.sent.append(hello_of(two, address="10.0.1.13", hostname="ip-10-0-1-13"))
    turn(master)
    assert master.state.hellos == {}
    assert memory.logged[-1].endswith("i-2 is at 10.0.1.12 and says 10.0.1.13")


@pytest.mark.parametrize("changes", [{"host_key": "ssh-ed25519 AAAAevil"}, {"user_key": "ssh-ed25519 AAAAevil"}])
def test_keys_are_fixed_at_the_first_hello(memory, keys, tmp_path, changes):
    master = Head(an_agent(memory, keys, tmp_path, 1))
    two = an_agent(memory, keys, tmp_path, 2)
    memory.reading = Reading(("i-2",), ())
    memory.sent += [hello_of(two), hello_of(two, **changes), hello_of(two, gpus=8)]
    turn(master)
    memory.sent.append(hello_of(two, **changes))
    turn(master)
    (node,) = master.state.hellos.values()
    assert (node.host_key, node.user_key) == tuple(key.rpartition(" ")[0] for key in keys[2])
    assert (node.gpus, master._refused) == (8, 2)


def test_what_follows_from_a_message_can_fail_and_it_is_deleted(memory, keys, tmp_path, monkeypatch):
    master = Head(an_agent(memory, keys, tmp_path, 1))
    monkeypatch.setattr(master, "work", lambda: 1 / 0)
    memory.sent.append({"kind": "ack", "instance_id": "i-2", "generation": 1})
    with pytest.raises(ZeroDivisionError):
        master.listen()
    assert len(memory.deleted) == 1


def test_hints_make_the_head_look_once_a_second(memory, keys, tmp_path):
    master = Head(an_agent(memory, keys, tmp_path, 1))
    master._check_s = 10
    memory.sent += [
        {"kind": "wish", "sender": "123456789012"},
        {"Type": "Notification", "sender": "AIDAIT2UOQQY3AUEKVGXU"},
    ]
    before = master._checked_at = time.monotonic()
    master.listen()
    assert (master._check_s, master._checked_at) == (1.0, before)


def test_the_head_waits_for_messages_only_until_a_node_may_fall_silent(memory, keys, tmp_path, monkeypatch):
    master = Head(an_agent(memory, keys, tmp_path, 1))
    waited: list[int] = []
    monkeypatch.setattr(master.agent.queue, "receive", lambda wait_s: waited.append(wait_s) or [])
    master._check_s, master._checked_at = 10, time.monotonic()
    two = an_agent(memory, keys, tmp_path, 2).describe()
    master.state.roster = Roster("demo", 1, 2, 1, (master.state.me, two))
    for age_s in (0.0, SILENT_S - 1.2, SILENT_S + 1):
        master.state.beats = {two.address: time.monotonic() - age_s}
        master.listen()
    assert waited == [3, 2, 3]


def test_a_node_that_the_roster_does_not_name_does_not_follow(memory, keys, tmp_path):
    master = Head(an_agent(memory, keys, tmp_path, 1, nodes=1, minimum=1))
    turn(master)
    assert memory.signals[0][0] == "SUCCESS"
    stranger = an_agent(memory, keys, tmp_path, 2)
    assert not worker.follow(stranger, stranger.describe())
    assert stranger.describe().instance_id not in validate.unpacked(memory.items["roster"]["roster"])
    assert f"node#{stranger.describe().instance_id}" not in memory.items
