"""Beats over real datagrams on loopback: which workers are heard, and how a worker learns of a new generation."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from phalanx.node import beats


@pytest.fixture
def ends(monkeypatch):
    """An ear and a beat whose threads do not run."""
    with monkeypatch.context() as here:
        here.setattr(beats.threading, "Thread", lambda **_: SimpleNamespace(start=lambda: None))
        # The kernel chooses the ear's port.
        here.setattr(beats, "PORT", 0)
        ear, beat = beats.Ear("127.0.0.1"), beats.Beat()
        here.setattr(beats, "PORT", ear._socket.getsockname()[1])
        here.setattr(beats.threading, "Thread", THREAD)
        for end in (ear, beat):
            end._socket.settimeout(60)
        beat.head = "127.0.0.1"
        ear.known.add("127.0.0.1")
        yield ear, beat
        ear._socket.close()
        beat._socket.close()


THREAD = threading.Thread


def exchange(ear, beat) -> bool:
    """Exchange one beat and its answer; return whether there was news."""
    beat.changed.clear()
    answering = threading.Thread(target=ear.answer)
    answering.start()
    beat.once()
    answering.join()
    return beat.changed.is_set()


def test_a_worker_is_heard_and_learns_of_a_new_generation(ends):
    ear, beat = ends
    ear.generation = beat.generation = 3
    assert not exchange(*ends)
    first = ear.heard["127.0.0.1"]
    ear.generation = 4
    assert exchange(*ends)
    assert ear.heard["127.0.0.1"] > first


def test_a_worker_learns_that_its_hello_has_not_arrived(ends):
    ear, beat = ends
    ear.known.clear()
    assert exchange(*ends), "it is time to say hello again"
    assert not exchange(*ends)
    assert (beat.heard, beat.unknown) == (True, True)
    ear.known.add("127.0.0.1")
    exchange(*ends)
    assert not beat.unknown


def test_a_pause_of_the_head_is_no_silence_of_its_workers(ends):
    ear, _ = ends
    now = time.monotonic()
    ear.heard |= {"10.0.1.2": now - 60, "10.0.1.3": now - 31}
    ear._awake_at = now - 30
    assert ear.now() - now < 5
    assert ear.heard["10.0.1.2"] - now == pytest.approx(-30, abs=5)
    assert ear.heard["10.0.1.3"] - now == pytest.approx(-1, abs=5)


def test_a_worker_is_silent_while_the_head_waits_for_aws(monkeypatch):
    """However long each answer takes, as on a crowded machine: only the ear's thread runs meanwhile."""
    monkeypatch.setattr(beats, "PORT", 0)
    monkeypatch.setattr(beats, "EVERY_S", 0.01)
    monkeypatch.setattr(beats, "_PAUSE_S", 0.5)
    ear = beats.Ear("127.0.0.1")
    ear.heard["10.0.1.2"] = began = time.monotonic()
    time.sleep(0.6)
    ear.now()
    assert ear.heard["10.0.1.2"] == began


def test_a_silent_head_is_noticed_and_its_silence_is_counted(ends):
    ear, beat = ends
    beat._socket.settimeout(0.01)
    beat.once()
    beat.once()
    assert (beat.changed.is_set(), beat.heard, beat.unanswered) == (True, False, 2)
    beat._socket.settimeout(60)
    ear.answer()
    exchange(ear, beat)
    assert (beat.heard, beat.unanswered) == (True, 0)


def test_the_head_notifies_known_workers_before_their_next_beat(ends):
    ear, beat = ends
    assert not exchange(*ends)
    ear.announce(1)
    beat.listen(0.05)
    assert beat.changed.is_set()


def test_a_new_head_gets_a_beat_at_once(ends):
    ear, beat = ends
    beat.head, beat.heard = "", True
    beat.aim("127.0.0.1")
    assert not beat.heard
    ear.answer()
    assert list(ear.heard) == ["127.0.0.1"]
    beat.aim("")
    assert beat.head == "127.0.0.1"


def test_a_worker_says_what_it_lacks_for_as_long_as_it_does(ends):
    ear, beat = ends
    beat.content = b" ".join((beats.IN_USE, beats.FULL, beats.HUNG))
    exchange(*ends)
    assert (ear.used_at > 0, ear.full, ear.hung) == (True, {"127.0.0.1"}, {"127.0.0.1"})
    beat.content = beats.HUNG
    exchange(*ends)
    assert (ear.full, ear.hung) == (set(), {"127.0.0.1"})
