"""A notice that AWS takes a node back: found in the metadata, and passed on to the ranks that catch its signal."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from phalanx.node import notice, wire
from phalanx.node.settings import ON_AWS
from phalanx.runner.starter import rank_signal

TAKEN = {"action": "terminate", "time": "2026-11-22T16:02:00Z"}
TEXT = "AWS takes back this spot instance at 2026-11-22T16:02:00Z"

SETTINGS = SimpleNamespace(patience=ON_AWS)


class Ended(Exception):  # noqa: N818
    """The instance has ended."""


class Instance:
    """An instance whose metadata have a notice from the third look on; it ends with the fifth."""

    def __init__(self, life_cycle: bytes) -> None:
        self.life_cycle, self.looks = life_cycle, 0
        self.reported: list[tuple[str, str]] = []

    def get(self, path: str) -> bytes:
        if path.endswith("life-cycle"):
            return self.life_cycle
        if self.looks < 2:
            raise wire.HttpError(404, b"")
        return json.dumps(TAKEN).encode()

    def report(self, kind: str, reason: str) -> None:
        self.reported.append((kind, reason))

    def sleep(self, _seconds: float) -> None:
        self.looks += 1
        if self.looks == 5:
            raise Ended


@pytest.fixture
def instance(monkeypatch):
    def make(life_cycle: bytes) -> Instance:
        made = Instance(life_cycle)
        monkeypatch.setattr(notice, "time", made)
        monkeypatch.setattr(notice.activity, "show", lambda text: made.reported.append(("shown", text)))
        return made

    return make


def test_a_spot_instance_reports_its_notice_until_it_ends_and_shows_it_once(instance):
    made = instance(b"spot")
    with pytest.raises(Ended):
        notice.watch(SimpleNamespace(metadata=made, report=made.report, settings=SETTINGS))
    assert made.reported == [("shown", TEXT), *[("leaving", TEXT)] * 3]


def test_an_instance_on_demand_does_not_look_again(instance):
    made = instance(b"on-demand")
    notice.watch(SimpleNamespace(metadata=made, report=made.report, settings=SETTINGS))
    assert (made.looks, made.reported) == (0, [])


@pytest.fixture
def node(monkeypatch) -> SimpleNamespace:
    """Processes: a rank 10 with children 11 and 12, and a rank 20; `catching` are those with a handler."""
    made = SimpleNamespace(catching=set(), signalled=[])
    parents = {10: "1", 11: "10", 12: "10", 13: "12", 20: "1"}
    monkeypatch.setattr(rank_signal, "processes", lambda: {pid: {"parent": parent} for pid, parent in parents.items()})
    monkeypatch.setattr(rank_signal, "_catches", lambda pid: pid in made.catching)
    monkeypatch.setattr(rank_signal, "kill", lambda pid, number: made.signalled.append(pid))
    return made


def test_of_a_rank_the_first_process_that_catches_it_is_signalled_and_no_other(node):
    node.catching = {12, 13}
    made = rank_signal.Notice()
    made.pass_on({0: 10, 1: 20})
    assert node.signalled == []
    made.give("spot")
    made.pass_on({0: 10, 1: 20})
    assert node.signalled == [12]


def test_a_rank_is_signalled_once_and_as_soon_as_it_catches_it(node):
    made = rank_signal.Notice()
    made.give("spot")
    made.pass_on({0: 10})
    assert node.signalled == []
    node.catching = {10}
    made.pass_on({0: 10})
    made.pass_on({0: 10})
    assert node.signalled == [10]
    made.give("spot")
    made.give("time")
    made.pass_on({0: 10})
    assert node.signalled == [10, 10]
