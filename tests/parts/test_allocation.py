"""A job's allocation from a scheduler that is unavailable, dies or answers late. No scheduler runs here."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.runner.batch import allocation
from phalanx.runner.batch.allocation import Allocation
from phalanx.runner.batch.scheduling import ENDED, HELD, QUEUED, AllocationStatus, Request
from phalanx.runner.process import RefusedError

QUEUES, HOLDS, ENDS = map(AllocationStatus, (QUEUED, HELD, ENDED))
REQUEST = Request("J1", "/nowhere", "fake", processes=2, nodes=2, per_node=1)
AWAY = RefusedError("fake does not answer\nat all")


class Fake:
    """A scheduler that answers `look` with these answers in order, and then repeats the last one."""

    NAME = "fake"

    def __init__(self, *answers: AllocationStatus | Exception, cancel: Exception | None = None) -> None:
        self.answers = list(answers)
        self.refusal = cancel
        self.cancelled = 0

    def submit(self, *_: Any) -> str:
        return "42"

    def status(self, *_: Any) -> AllocationStatus:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cancel(self, *_: Any) -> None:
        self.cancelled += 1
        if self.refusal:
            raise self.refusal


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    for name in ("_TURN_S", "_FIRST_LOOK_S", "_LAST_LOOK_S"):
        monkeypatch.setattr(allocation, name, 0.001)
    monkeypatch.setattr(allocation, "_ENDS_BY_ITSELF_S", 0.02)
    monkeypatch.setattr(allocation, "_SAYS_WHY_WITHIN_S", 0.05)
    monkeypatch.setattr(allocation, "_ENDS_WITHIN_S", 0.05)


def held(scheduler: Any, reported: list[str], turn: Any = lambda _: None) -> Allocation:
    context: Any = SimpleNamespace(
        stop_requested=False, socket=SimpleNamespace(attend=None), loop=SimpleNamespace(turn=turn)
    )
    return Allocation(scheduler, lambda *_: "", context, reported.append, lambda _: None)


def test_a_scheduler_that_is_briefly_unavailable_ends_no_queued_job():
    reported: list[str] = []
    with pytest.raises(allocation.EndedError):
        held(Fake(QUEUES, AWAY, AWAY, QUEUES, ENDS), reported).obtain(REQUEST)
    away = "waiting for 42 of fake, which does not answer (fake does not answer)"
    assert reported == ["queued in fake as 42", away, away, "queued in fake as 42"]


def test_a_scheduler_that_stays_unavailable_ends_the_job(monkeypatch):
    monkeypatch.setattr(allocation, "_AWAY_WITHIN_S", 0.02)
    with pytest.raises(RefusedError, match="does not answer"):
        held(Fake(AWAY), []).obtain(REQUEST)


def test_a_starter_that_died_gets_no_beats_and_does_no_harm(monkeypatch):
    monkeypatch.setattr(allocation, "Pace", lambda: SimpleNamespace(is_due=lambda: True))
    ours, theirs = socket.socketpair()
    (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()
    closed: list[int] = []

    def come(_: float | None) -> None:
        if to_read not in closed:
            closed.append(to_read)
            hello = {"allocation": "42", "node": "a", "slots": 1, "nodes": 2, "gpus": None}
            one._admit(ours, (from_read, to_write), hello)
            os.close(to_read)

    one = held(Fake(HOLDS, HOLDS, HOLDS, ENDS), [], come)
    with pytest.raises(allocation.EndedError):
        one.obtain(REQUEST)
    assert one.release() == ""
    theirs.close()
    os.close(from_write)


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        (
            Fake(
                HOLDS,
                QUEUES,
                QUEUES,
                QUEUES,
                ENDS,
            ),
            "",
        ),
        (Fake(QUEUES, ENDS, cancel=RefusedError("already ended")), ""),
        (Fake(AWAY, AWAY, ENDS), ""),
        (Fake(QUEUES, cancel=RefusedError("no")), "fake may still hold 42: no"),
        (Fake(AllocationStatus(HELD, "R")), "fake still says R for 42"),
    ],
)
def test_a_released_allocation_is_awaited_and_one_that_stays_is_reported(scheduler, message):
    one = held(scheduler, [])
    one._id = "42"
    assert one.release() == message


def test_an_allocation_without_a_known_end_is_reported_as_open():
    one = held(Fake(AWAY), [])
    assert one.fate().phase == HELD


ATTENDS = """
import os, sys
from types import SimpleNamespace
from phalanx.runner.starter import attend
attend.checked.argv = lambda *_: ("sh", "-c", f"sleep 0.3; cat >{sys.argv[1]}/taken")
attend.read_roster, attend.this_node = lambda: None, lambda _: SimpleNamespace(name="worker1", head=True)
attend.count_here, attend.granted_gpus, attend.set_environment = lambda *_: 1, lambda *_: None, lambda _: None
attend.serve = lambda *_: os.write(1, b"the report")
attend.attend(SimpleNamespace(NODE_INDEX="INDEX", GPUS=()), sys.argv[1], "1", 1, "1")
"""


def test_the_last_words_of_a_starter_reach_the_runner_when_a_busy_node_passes_them_on_late(tmp_path):
    subprocess.run([sys.executable, "-c", ATTENDS, str(tmp_path)], check=True, timeout=60)
    assert (tmp_path / "taken").read_text() == "the report"
