"""The end of an attempt: when processes are signalled, how long it waits, and what nodes report."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from phalanx.runner.files.job_status import NodeVerdict
from phalanx.runner.head.ending import ASK_RANKS, GIVE_UP, TERMINATE, WAIT, NodeReports, Shutdown
from phalanx.runner.process import PreparedJob

CLEAN = {"ended": [], "killed": [], "left": []}


def ending(ask_at: float, grace_s: float = 5.0) -> Shutdown:
    found = Shutdown(grace_s)
    found.begin(ask_at)
    return found


def steps(end: Shutdown, *moments: tuple[float, bool]) -> list[int]:
    return [end.step(now, has_ranks) for now, has_ranks in moments]


def test_an_engine_without_ranks_is_asked_after_a_moment_and_has_two_seconds():
    end = ending(101.0)
    assert steps(end, (100.0, False), (101.0, False)) == [WAIT, TERMINATE]
    assert end.deadline == 103.0
    assert steps(end, (102.9, False), (103.0, False)) == [WAIT, GIVE_UP]


def test_a_stop_hurries_what_was_to_be_asked_later_and_nothing_else():
    end = ending(200.0)
    end.hurry(100.0)
    assert steps(end, (100.0, True)) == [ASK_RANKS]
    end.hurry(101.0)
    assert end.deadline == 105.0


@pytest.mark.parametrize("grace_s", [0.0, 5.0, 600.0])
def test_ranks_have_the_grace_and_their_engine_is_asked_after_it(grace_s):
    end = ending(100.0, grace_s)
    assert steps(end, (100.5, True)) == [ASK_RANKS]
    assert end.deadline == 100.5 + grace_s
    assert steps(end, (100.5 + grace_s, True)) == [TERMINATE]
    assert steps(end, (102.4 + grace_s, True), (102.5 + grace_s, True)) == [WAIT, GIVE_UP]


def test_an_engine_is_asked_as_soon_as_its_ranks_have_ended():
    end = ending(100.0, 30.0)
    assert steps(end, (100.0, True), (101.0, True), (101.1, False)) == [ASK_RANKS, WAIT, TERMINATE]
    assert steps(end, (103.0, False), (103.1, False)) == [WAIT, GIVE_UP]


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """The nodes that were queried over a new connection; each reports that it is clean."""
    names: list[str] = []

    class Inquiry:
        def __init__(self, _directory: str, _job_id: str, node: SimpleNamespace) -> None:
            names.append(node.name)
            self._name = node.name

        def verdict(self) -> NodeVerdict:
            return NodeVerdict(self._name, True, 0, "asked")

    monkeypatch.setattr("phalanx.runner.head.settle.Inquiry", Inquiry)
    return names


def line(node: str, report: object = None) -> SimpleNamespace:
    return SimpleNamespace(node=node, name=node, report=report)


def test_a_report_counts_and_a_node_without_one_is_asked(asked):
    reports = NodeReports(PreparedJob(("true",), "exec", id="1", directory="/efs/1"))
    lines = [line("n1", CLEAN), line("n2"), line("n3")]
    reports.inquire(line("n4"))
    reports.inquire(lines[1])
    assert [reports.lacks(one) for one in lines] == [False, False, True]
    reports.inquire(lines[2])
    verdicts = reports.verdicts({one.node: one for one in lines})
    assert [(verdict.node, verdict.message == "asked") for verdict in verdicts] == [
        ("n1", False),
        ("n2", True),
        ("n3", True),
        ("n4", True),
    ]
    assert asked == ["n4", "n2", "n3"]


def test_a_node_that_joins_again_reports_by_itself(asked):
    reports = NodeReports(PreparedJob(("true",), "exec", id="1", directory="/efs/1"))
    reports.inquire(line("n2"))
    reports.withdraw("n2")
    assert reports.lacks(line("n2"))
    assert reports.verdicts({"n2": line("n2", CLEAN)})[0].clean
    assert asked == ["n2"]
