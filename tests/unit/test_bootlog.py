"""The boot log's thread: it ships lines at any time, and a forked process ships what was not shipped."""

from __future__ import annotations

import queue
from typing import Any

import pytest

from phalanx.node import bootlog

WAIT_S = 20


class Stream:
    """Records the texts of each call."""

    def __init__(self) -> None:
        self.calls: queue.Queue[list[str]] = queue.Queue()

    def put(self, events: list[tuple[int, str]]) -> None:
        self.calls.put([text for _, text in events])


@pytest.fixture
def log(monkeypatch) -> bootlog.BootLog:
    monkeypatch.setattr(bootlog, "_BATCH_S", 0.01)
    return bootlog.BootLog()


def test_later_lines_are_sent_too(log):
    stream: Any = Stream()
    log.say("one")
    log.ship(stream)
    assert stream.calls.get(timeout=WAIT_S) == ["one"]
    log.say("two")
    assert stream.calls.get(timeout=WAIT_S) == ["two"]
    log.close(WAIT_S)


def test_the_end_waits_for_all_lines(log, monkeypatch):
    monkeypatch.setattr(bootlog, "_LINES", 2)
    monkeypatch.setattr(bootlog, "_BATCH_S", WAIT_S)
    stream: Any = Stream()
    log.ship(stream)
    for text in "abc":
        log.say(text)
    log.close(WAIT_S)
    assert [stream.calls.get_nowait() for _ in range(2)] == [["a", "b"], ["c"]]
    assert not log.lines


def test_a_forked_process_ships_its_own_lines(log):
    first: Any = Stream()
    log.ship(first)
    log.close(WAIT_S)
    log.say("left over")
    second: Any = Stream()
    log.ship(second)
    assert second.calls.get(timeout=WAIT_S) == ["left over"]
    log.close(WAIT_S)
