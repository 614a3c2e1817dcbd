"""A head and its members later on: silences, new heads, refusals of AWS; with its services in memory."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
import zlib
from types import SimpleNamespace

import pytest
from cluster_in_memory import Keys, Memory, a_memory, an_agent, keys_of_four, says_hello, turn

from phalanx.node import validate, worker
from phalanx.node.aws_client import AwsError
from phalanx.node.decision import RENEW_S
from phalanx.node.head import Head
from phalanx.node.services import Reading


@pytest.fixture
def memory(monkeypatch) -> Memory:
    return a_memory(monkeypatch)


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Keys:
    return keys_of_four(tmp_path_factory.mktemp("keys"))


def head_and_worker(memory, keys, tmp_path):
    """A head that has published a roster of two, and its worker's agent."""
    head = Head(an_agent(memory, keys, tmp_path, 1, nodes=2))
    head.restore()
    two = an_agent(memory, keys, tmp_path, 2)
    memory.reading = Reading((two.describe().instance_id,), ())
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


@pytest.fixture
def full_disk(monkeypatch):
    """Fill the disk of the node with this root, and make room by the function that is returned."""

    def fill(root):
        def rename(old, new, real=os.rename):
            if str(new).startswith(str(root)) and not str(new).startswith(f"{root}/run/"):  # which is memory
                raise OSError(errno.ENOSPC, "No space left on device", new)
            real(old, new)

        patched = monkeypatch.context()
        patched.__enter__().setattr(os, "rename", rename)
        return lambda: patched.__exit__(None, None, None)

    return fill


def test_a_head_with_a_full_disk_publishes_and_proves_nobody_until_it_has_room(memory, keys, tmp_path, full_disk):
    head, _ = silent_worker(memory, keys, tmp_path)
    own, known = tmp_path / "1/opt/phalanx/roster.json", memory.items["generation"]["number"]
    before = own.read_text()
    make_room = full_disk(tmp_path / "1")
    three = an_agent(memory, keys, tmp_path, 3)
    memory.reading = Reading((three.describe().instance_id,), ())
    says_hello(three)
    for _ in range(3):
        turn(head)
    assert memory.items["generation"]["number"] > known and own.read_text() == before
    assert worker.follow(three, three.describe())
    turn(head)
    assert "i-3" not in head.state.proven
    assert sum("is not written here yet" in line for line in memory.logged) == 1
    assert not list(tmp_path.rglob("*.phalanx-*"))
    make_room()
    turn(head)
    assert "i-3" in own.read_text() and "i-3" in head.state.proven


def test_a_worker_with_a_full_disk_keeps_its_generation_until_it_has_room(memory, keys, tmp_path, full_disk):
    head, two = head_and_worker(memory, keys, tmp_path)
    beat = SimpleNamespace(heard=True, unknown=False, announced=1, generation=0, head="10.0.1.11", aim=lambda _: None)
    member = worker.Worker(two, beat)
    member.turn()
    turn(head)
    head.state.published_at = 0.0 - RENEW_S
    turn(head)
    beat.announced = head.state.roster.generation
    make_room = full_disk(tmp_path / "2")
    for _ in range(3):
        member.turn()
    assert (member.applied, beat.announced) == (1, 2)
    assert sum("generation 1 stays" in line for line in memory.logged) == 1
    make_room()
    member.turn()
    assert member.applied == 2


def test_ec2_is_asked_whether_a_silent_worker_has_ended(memory, keys, tmp_path):
    """It is replaced at once, and not terminated: the right to that ended with its group's membership."""
    head, _ = silent_worker(memory, keys, tmp_path)
    assert memory.terminated == []
    memory.gone = {"i-2"}
    turn(head)
    assert "i-2" in head.state.dropped
    assert (memory.terminated, memory.asked) == ([], [["i-2"]] * 3)


def test_a_head_that_comes_back_goes_on_with_another_authority(memory, keys, tmp_path):
    first, two = head_and_worker(memory, keys, tmp_path)
    worker.follow(two, two.describe())
    turn(first)
    authority = memory.items["authority"]["public_key"]
    memory.requested.clear()
    second = Head(an_agent(memory, keys, tmp_path, 3, nodes=2))
    second.restore()
    turn(second)
    assert memory.requested == [] and len(memory.signals) == 1
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
    memory.reading = Reading(("i-2", "i-3", "i-4"), ())
    for agent in workers:
        says_hello(agent)
    turn(head)
    for agent in workers:
        worker.follow(agent, agent.describe())
    turn(head)
    memory.requested.clear()
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
    assert memory.requested == [], "Auto Scaling would choose which instance ends"
    turn(head)
    assert (memory.terminated, memory.requested) == (["i-4", "i-3"], [2])
    turn(head)
    assert (memory.terminated, memory.requested) == (["i-4", "i-3"], [2])


def test_a_growth_that_aws_refuses_is_requested_again(memory, keys, tmp_path, refuse):
    head = cluster_of_four(memory, keys, tmp_path)
    refuse("request", 6)
    memory.items["wish"] = {"nodes": 6}
    turn(head)
    assert memory.requested == []
    turn(head)
    assert memory.requested == [6]
    assert any("Rate exceeded" in line for line in memory.logged)


def test_a_growth_does_not_wait_for_a_termination_that_aws_refuses(memory, keys, tmp_path, refuse):
    head = cluster_of_four(memory, keys, tmp_path)
    refuse("terminate", "i-3", "i-3", "i-3")
    head.state.failed["i-3"] = "only 7 of 8 GPUs work"
    memory.items["wish"] = {"nodes": 6}
    turn(head)
    assert (memory.terminated, memory.requested) == ([], [6])
    turn(head)
    assert (memory.terminated, memory.requested) == (["i-3"], [6])


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
    deadline = time.monotonic() + 120
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


def test_a_head_that_finds_a_newer_roster_says_so_and_writes_nothing(memory, keys, tmp_path):
    head_and_worker(memory, keys, tmp_path)
    content = json.loads(validate.unpacked(memory.items["roster"]["roster"]))
    memory.items["roster"]["roster"] = zlib.compress(json.dumps({**content, "format": 2}).encode())
    before = json.dumps(memory.items, default=repr)
    second = Head(an_agent(memory, keys, tmp_path, 3, nodes=2))
    with pytest.raises(SystemExit, match=r"a newer phalanx \(format 2; this one reads 1\): pip install -U phalanx"):
        second.restore()
    assert json.dumps(memory.items, default=repr) == before and memory.signals == []
    assert "the cluster's roster" in memory.logged[-1]
