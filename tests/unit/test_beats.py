"""Silence is counted only while one could hear."""

from __future__ import annotations

import pytest

from phalanx.node.runner.beats import BEAT_EVERY_S, FENCE_S, SILENT_S, Contact, Pace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def look_for(contact: Contact, clock: Clock, seconds: int) -> float:
    for _ in range(seconds - 1):
        clock.now += 1
        contact.look()
    clock.now += 1
    return contact.look()


def test_silence_adds_up_and_any_sign_ends_it(clock):
    contact = Contact(clock)
    assert look_for(contact, clock, 12) == 12 > SILENT_S
    contact.heard()
    assert look_for(contact, clock, 2) == 2


def test_who_did_not_run_could_not_hear(clock):
    contact = Contact(clock)
    clock.now += 3600  # suspended
    assert contact.look() < SILENT_S
    assert look_for(contact, clock, 12) > SILENT_S


def test_a_starter_outwaits_a_runner_that_gives_it_up():
    assert SILENT_S + BEAT_EVERY_S < 15 < FENCE_S


def test_a_beat_is_due_once_per_interval(clock):
    pace = Pace(clock)
    due = []
    for _ in range(10):
        clock.now += 1
        due.append(pace.is_due())
    assert due == [False, True] * 5
