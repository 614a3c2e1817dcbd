"""A head and its workers: with real keys and files, and with the queue, the table and the group in memory."""

from __future__ import annotations

import json
import socket
import time
from types import SimpleNamespace

import pytest
from cluster_in_memory import ROLE, Memory, an_agent
from rosters import a_node

from phalanx.node import head, trust, validate, worker
from phalanx.node.aws_client import AwsError
from phalanx.node.head import Head
from phalanx.node.services import Reading, Refusal


@pytest.fixture
def memory(monkeypatch) -> Memory:
    made = Memory()
    monkeypatch.setattr(head.outcome, "signal", lambda url, status, text: made.signals.append((status, text)))
    monkeypatch.setattr(head.proof, "log_in", lambda nodes, user, uid: {})
    monkeypatch.setattr(head.proof, "settle_jobs", lambda *place: made.settled.append(place))
    return made


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> dict[int, tuple[str, str]]:
    directory = tmp_path_factory.mktemp("keys")
    return {
        n: (trust.make_key(f"{directory}/h{n}", "h"), trust.make_key(f"{directory}/u{n}", "u")) for n in range(1, 5)
    }


def says_hello(agent) -> None:
    worker.hello(agent, agent.describe())


def turn(made: Head) -> None:
    """Run one round of the head's loop."""
    made._checked_at = 0.0
    made.work()
    made.listen()
    made.work()


def test_from_hello_to_success(memory, keys, tmp_path):
    master = Head(an_agent(memory, keys, tmp_path, 1))
    workers = [an_agent(memory, keys, tmp_path, n) for n in (2, 3, 4)]
    master.restore()
    assert memory.desired == [3]
    memory.reading = Reading(3, tuple(w.describe().instance_id for w in workers), ())
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
    memory.reading = Reading(3, (two.describe().instance_id,), refusals)
    says_hello(two)
    turn(master)
    assert memory.desired == [1]
    assert memory.logged.count("Auto Scaling: no sufficient capacity") == 3
    assert two.workers == 3
    worker.follow(two, two.describe())
    assert two.workers == 1, "it polls as often as one worker may"
    turn(master)
    missing = json.loads(memory.signals[0][1])["missing"]
    assert [m["reason"] for m in missing] == ["no sufficient capacity"] * 2


def test_a_boot_that_fails_below_the_minimum_ends_the_cluster(memory, keys, tmp_path):
    master = Head(an_agent(memory, keys, tmp_path, 1, nodes=2))
    two = an_agent(memory, keys, tmp_path, 2)
    memory.reading = Reading(1, (two.describe().instance_id,), ())
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
    memory.reading = Reading(3, ("i-2", "i-3"), ())
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
    memory.reading = Reading(3, ("i-2",), ())
    turn(master)
    assert master.state.hellos == {}, "EC2 has no address for it"
    memory.known["i-2"] = "10.0.1.12"
    turn(master)
    assert list(master.state.hellos) == ["i-2"]
    assert memory.logged[-1] == "hello from i-2 at 10.0.1.12"


def test_a_node_that_claims_another_address_is_not_believed(memory, keys, tmp_path):
    master = Head(an_agent(memory, keys, tmp_path, 1))
    two = an_agent(memory, keys, tmp_path, 2)
    memory.reading = Reading(3, ("i-2",), ())
    memory.sent.append(hello_of(two, address="10.0.1.13", hostname="ip-10-0-1-13"))
    turn(master)
    assert master.state.hellos == {}
    assert memory.logged[-1].endswith("i-2 is at 10.0.1.12 and says 10.0.1.13")


@pytest.mark.parametrize("changes", [{"host_key": "ssh-ed25519 AAAAevil"}, {"user_key": "ssh-ed25519 AAAAevil"}])
def test_keys_are_fixed_at_the_first_hello(memory, keys, tmp_path, changes):
    master = Head(an_agent(memory, keys, tmp_path, 1))
    two = an_agent(memory, keys, tmp_path, 2)
    memory.reading = Reading(3, ("i-2",), ())
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


def test_a_node_that_the_roster_does_not_name_does_not_follow(memory, keys, tmp_path):
    master = Head(an_agent(memory, keys, tmp_path, 1, nodes=1, minimum=1))
    turn(master)
    assert memory.signals[0][0] == "SUCCESS"
    stranger = an_agent(memory, keys, tmp_path, 2)
    assert not worker.follow(stranger, stranger.describe())
    assert stranger.describe().instance_id not in validate.unpacked(memory.items["roster"]["roster"])
    assert f"node#{stranger.describe().instance_id}" not in memory.items


def head_and_worker(memory, keys, tmp_path):
    """A head that has published a roster of two, and its worker's agent."""
    head = Head(an_agent(memory, keys, tmp_path, 1, nodes=2))
    head.restore()
    two = an_agent(memory, keys, tmp_path, 2)
    memory.reading = Reading(1, (two.describe().instance_id,), ())
    says_hello(two)
    turn(head)
    return head, two


def silent_worker(memory, keys, tmp_path):
    """A ready cluster of two whose worker is silent."""
    head, two = head_and_worker(memory, keys, tmp_path)
    worker.follow(two, two.describe())
    turn(head)
    head.state.beats[two.describe().address] = time.monotonic() - 20
    head.state.heard[two.describe().instance_id] -= 30
    head.state.started_at -= 30
    turn(head)
    return head, two


def test_a_silent_worker_keeps_its_certificates_and_returns_with_its_next_beat(memory, keys, tmp_path):
    head, two = silent_worker(memory, keys, tmp_path)
    roster = json.loads(validate.unpacked(memory.items["roster"]["roster"]))
    assert ([n["instance_id"] for n in roster["silent"]], roster["revoked"]) == (["i-2"], [])
    assert not worker.follow(two, two.describe()), "no job uses it, so that it has nothing to apply"
    head.state.beats[two.describe().address] = time.monotonic()
    turn(head)
    assert worker.follow(two, two.describe())
    assert json.loads(validate.unpacked(memory.items["roster"]["roster"]))["silent"] == [] and memory.terminated == []


def test_ec2_is_asked_whether_a_silent_worker_has_ended(memory, keys, tmp_path):
    head, _ = silent_worker(memory, keys, tmp_path)
    assert memory.terminated == []
    memory.gone = {"i-2"}
    turn(head)
    assert (memory.terminated, memory.asked) == (["i-2"], [["i-2"]] * 2)


def test_a_pause_of_the_head_is_no_silence_of_its_workers_and_does_not_end_one(memory, keys, tmp_path):
    head, two = silent_worker(memory, keys, tmp_path)
    three = a_node(3).address
    now = time.monotonic()
    head.state.beats |= {two.describe().address: now - 60, three: now - 31}
    head._awake_at = now - 30
    assert head._now() - now < 5
    assert head.state.beats[two.describe().address] - now == pytest.approx(-30, abs=1)
    assert head.state.beats[three] - now == pytest.approx(-1, abs=1)


def test_a_head_that_comes_back_goes_on_with_another_authority(memory, keys, tmp_path):
    first, two = head_and_worker(memory, keys, tmp_path)
    worker.follow(two, two.describe())
    turn(first)
    authority = memory.items["authority"]["public_key"]
    memory.desired.clear()
    second = Head(an_agent(memory, keys, tmp_path, 3, nodes=2))
    second.restore()
    turn(second)
    assert memory.desired == [] and len(memory.signals) == 1
    roster = json.loads(validate.unpacked(memory.items["roster"]["roster"]))
    assert roster["generation"] == 2
    assert [n["instance_id"] for n in roster["nodes"]] == ["i-3", "i-2"]
    assert memory.items["authority"]["public_key"] != authority
    assert worker.follow(two, two.describe())
    trusted = (tmp_path / "2/etc/ssh/phalanx/authority.pub").read_text()
    assert memory.items["authority"]["public_key"].startswith(trusted.strip())
    with pytest.raises(SystemExit):
        Head(an_agent(memory, keys, tmp_path, 1, nodes=2)).restore()
    assert keys[1][0].rpartition(" ")[0] in (tmp_path / "2/etc/ssh/phalanx/revoked").read_text()


@pytest.mark.parametrize("wished", [1, 3])
def test_a_head_that_comes_back_goes_by_the_number_of_the_last_scale(memory, keys, tmp_path, wished):
    head_and_worker(memory, keys, tmp_path)
    memory.items["wish"] = {"nodes": wished}
    second = Head(an_agent(memory, keys, tmp_path, 3, nodes=2))
    second.restore()
    turn(second)
    assert json.loads(validate.unpacked(memory.items["roster"]["roster"]))["requested"] == wished


def cluster_of_four(memory, keys, tmp_path) -> Head:
    """A ready cluster of a head and three workers."""
    head = Head(an_agent(memory, keys, tmp_path, 1))
    head.restore()
    workers = [an_agent(memory, keys, tmp_path, n) for n in (2, 3, 4)]
    memory.reading = Reading(3, ("i-2", "i-3", "i-4"), ())
    for agent in workers:
        says_hello(agent)
    turn(head)
    for agent in workers:
        worker.follow(agent, agent.describe())
    turn(head)
    memory.desired.clear()
    return head


@pytest.fixture
def refuse(memory, monkeypatch):
    """Have a call of the group fail for some first arguments, once for each."""

    def refuse(call: str, *first: object) -> None:
        works, left = getattr(memory, call), list(first)

        def attempt(argument, **rest):
            if argument in left:
                left.remove(argument)
                raise AwsError(call, "Throttling", "Rate exceeded")
            works(argument, **rest)

        monkeypatch.setattr(memory, call, attempt)

    return refuse


def test_a_termination_that_aws_refuses_is_repeated_and_stops_no_other(memory, keys, tmp_path, refuse):
    head = cluster_of_four(memory, keys, tmp_path)
    refuse("terminate", "i-3")
    memory.items["wish"] = {"nodes": 2}
    turn(head)
    assert memory.desired == [], "Auto Scaling would choose which instance ends"
    turn(head)
    assert (memory.terminated, memory.desired) == (["i-4", "i-3"], [1])
    turn(head)
    assert (memory.terminated, memory.desired) == (["i-4", "i-3"], [1])


def test_a_growth_that_aws_refuses_is_requested_again(memory, keys, tmp_path, refuse):
    head = cluster_of_four(memory, keys, tmp_path)
    refuse("set_desired", 5)
    memory.items["wish"] = {"nodes": 6}
    turn(head)
    assert memory.desired == []
    turn(head)
    assert memory.desired == [5]
    assert any("Rate exceeded" in line for line in memory.logged)


def test_a_growth_does_not_wait_for_a_termination_that_aws_refuses(memory, keys, tmp_path, refuse):
    head = cluster_of_four(memory, keys, tmp_path)
    refuse("terminate", "i-3", "i-3", "i-3")
    head.state.failed["i-3"] = "only 7 of 8 GPUs work"
    memory.items["wish"] = {"nodes": 6}
    turn(head)
    assert (memory.terminated, memory.desired) == ([], [5])
    turn(head)
    assert (memory.terminated, memory.desired) == (["i-3"], [5])


class Silence:
    """Stands in for beats that a head does not answer."""

    head = "10.0.0.4"

    def __init__(self, unanswered: int = 30) -> None:
        self.unanswered = unanswered


KNOWN = {"number": 3, "head": "i-1", "head_address": "10.0.0.4"}


@pytest.fixture
def two(memory, keys, tmp_path, monkeypatch):
    """A worker in the newest roster, and a function that runs it with a given head."""

    def connect(address: tuple[str, int], timeout_s: float) -> socket.socket:
        if address[0] == Silence.head:
            raise TimeoutError
        return socket.create_connection(address, timeout_s)

    monkeypatch.setattr(worker, "socket", SimpleNamespace(create_connection=connect))
    memory.items["generation"] = dict(KNOWN)
    agent = an_agent(memory, keys, tmp_path, 2)
    return lambda beat: worker.replace_lost_head(agent, KNOWN, beat)


def test_a_head_that_vanishes_silently_is_replaced(memory, two):
    silence = Silence()
    memory.gate.clear()
    two(silence)  # and continues, though Auto Scaling does not answer yet
    memory.gate.set()
    deadline = time.monotonic() + 60
    while memory.terminated != ["i-1"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    two(silence)
    assert (silence.unanswered, memory.terminated) == (0, ["i-1"]), "not again before as long a silence"


def test_a_head_that_may_live_is_left_alone(memory, two):
    two(Silence(29))
    refusing = Silence()
    refusing.head = "127.0.0.254"  # nothing listens there, and the machine refuses the connection
    two(refusing)
    memory.items["generation"]["number"] = 4  # it has written a roster meanwhile, perhaps without this node
    two(Silence())
    assert memory.terminated == []
