"""The message of a failed job: the failure that explains the others."""

from __future__ import annotations

import re
import time

import pytest
from fake_nodes import roster

from phalanx.launchers import load
from phalanx.runner.head.process_table import Member
from phalanx.runner.head.verdict import NODE, Life, Outcome
from phalanx.runner.process import PreparedJob

RANK = Member("3", "n2", is_rank=True)
MPIEXEC = Member("mpiexec", "n1", is_rank=False, is_main=True)


@pytest.mark.parametrize(
    ("failures", "reported"),
    [
        ([(RANK, -9), (MPIEXEC, 137)], "rank 3 on n2 was ended by SIGKILL"),
        ([(MPIEXEC, 1), (RANK, 2)], "rank 3 on n2 ended with exit code 2"),
        ([(RANK, -15), (MPIEXEC, 5)], "mpiexec on n1 ended with exit code 5"),
        # The engine's daemons killed the ranks, and were reported first.
        ([(RANK, -9), (MPIEXEC, -9)], "mpiexec on n1 was ended by SIGKILL"),
    ],
)
def test_the_failure_that_explains_the_others_is_reported(failures, reported):
    outcome = Outcome()
    for number, (member, code) in enumerate(failures):
        outcome.fail(member.ended_as(code), code, number, member.weight(code))
    assert outcome.record["message"] == reported


def test_a_lost_node_explains_all_failures():
    outcome = Outcome()
    outcome.fail("mpiexec", 1, 0, MPIEXEC.weight(-9))
    outcome.fail("the node", 1, 1, NODE)
    assert (outcome.record["message"], outcome.died) == ("the node", True)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (b"[ip-1:9] plm:rsh: Warning: setpgid(5,5) failed in parent with errno=Permission denied(13)\n\n", b""),
        (b"a\n[ip-1:9] plm:ssh: Warning: setpgid(5,5) failed in parent with errno=x(13)\nb\n", b"a\nb\n"),
        (b"[ip-1:9] plm:rsh: Error: setpgid(0,0) failed in child with errno=x(1)\n", None),
    ],
)
def test_a_line_of_mpiexec_that_would_only_alarm_is_left_out(text, left):
    [mpiexec] = load("mpi").processes(PreparedJob(("hostname",), "mpi", id="1", directory="/efs/1"), roster(2, 2))
    assert re.sub(mpiexec.harmless.encode(), b"", text, flags=re.MULTILINE) == (text if left is None else left)


def test_the_life_of_what_failed_first_is_what_counts():
    outcome = Outcome()
    now = time.time()
    outcome.fail("its engine ended it", 143, 3, RANK.weight(-15), Life(0.5, now))
    outcome.fail("the engine says why", 4, 0, MPIEXEC.weight(4), Life(8.0, now + 0.1))
    assert outcome.lived_s == 0.5


@pytest.fixture
def now(monkeypatch) -> float:
    """A time that stands still, because this machine may stall between two failures."""
    stands = time.time()
    monkeypatch.setattr(time, "time", lambda: stands)
    return stands


def test_the_life_of_what_failed_first_stays_whatever_is_reported(now):
    outcome = Outcome()
    outcome.fail("the rank", 1, 0, RANK.weight(1), Life(0.5, now - 0.6))
    outcome.fail("an engine", 137, 1, MPIEXEC.weight(-9), Life(40.0, now - 0.2))
    outcome.fail("another engine", 137, 2, MPIEXEC.weight(-9), Life(50.0, now - 0.3))
    assert (outcome.record["message"], outcome.lived_s) == ("another engine", 0.5)


def test_the_life_of_what_failed_first_counts_although_it_explains_less_and_was_heard_last(now):
    outcome = Outcome()
    outcome.fail("an engine", 137, 0, MPIEXEC.weight(-9), Life(40.0, now))
    outcome.fail("the rank", 1, 1, RANK.weight(1), Life(0.5, now - 0.2))
    assert (outcome.record["message"], outcome.lived_s) == ("an engine", 0.5)


@pytest.mark.parametrize(
    ("second_at_s", "reported"),
    [
        pytest.param(-0.2, "the second", id="it was heard later"),
        pytest.param(0.2, "the first", id="it was later"),
        pytest.param(-3600.0, "the second", id="its clock is wrong, and the two are heard together"),
    ],
)
def test_of_two_nodes_the_one_that_failed_first_is_reported(second_at_s, reported, now):
    outcome = Outcome()
    outcome.fail("the first", 1, 0, RANK.weight(1), Life(1.0, now))
    outcome.fail("the second", 2, 1, RANK.weight(2), Life(2.0, now + second_at_s))
    assert outcome.record["message"] == reported
    assert (outcome.number, outcome.lived_s) == ((1, 2.0) if reported == "the second" else (0, 1.0))


def test_a_clock_that_is_wrong_misleads_for_a_moment_only(now, monkeypatch):
    outcome = Outcome()
    outcome.fail("the first", 1, 0, RANK.weight(1), Life(1.0, now))
    monkeypatch.setattr(time, "time", lambda: now + 1.5)
    outcome.fail("the second", 2, 1, RANK.weight(2), Life(2.0, now - 3600))
    assert outcome.record["message"] == "the first"
    outcome.forgive()
    assert outcome.lived_s is None
