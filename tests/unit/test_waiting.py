"""What a command shows of its waits: nothing for two seconds, then what each thread waits for."""

from __future__ import annotations

import math
import threading

from phalanx import waits
from phalanx.cli import waiting
from phalanx.cli.waiting import Wait, Waits, describe, until_shown


def test_a_short_wait_is_not_shown():
    assert until_shown([], 0.0) == math.inf
    assert until_shown([Wait("ssh", 100.0)], 0.0) == 102.0


def test_a_long_wait_is_shown_every_ten_seconds():
    long = [Wait("ssh", 100.0)]
    assert [until_shown(long, shown) for shown in (102.0, 112.0)] == [112.0, 122.0]
    assert until_shown([Wait("another", 105.0)], 104.0) == 107.0


def test_the_innermost_wait_of_each_thread_is_described_if_it_is_long():
    nodes = [Wait(f"worker{number}", 100.0, thread=number) for number in range(5)]
    inner = [Wait("job", 90.0, thread=0), *nodes, Wait("an answer", 129.5, thread=4)]
    assert describe(inner, 130.0) == "waiting for worker0, worker1, worker2 and 2 more (30.0 s)"
    assert describe([*nodes[:1], Wait("worker0", 101.0, thread=9)], 130.0) == "waiting for worker0 (30.0 s)"


def test_a_wait_of_the_library_is_shown_while_it_lasts(monkeypatch):
    monkeypatch.setattr(waiting, "_SILENT_S", 0.0)
    shown, texts = threading.Event(), []

    def show(text):
        texts.append(text)
        shown.set()

    waits.show_with(Waits(show))
    try:
        with waits.waiting("the head to answer"):
            assert shown.wait(10)
    finally:
        waits.show_with(waits.nullcontext)
    assert texts[0].startswith("waiting for the head to answer (")
