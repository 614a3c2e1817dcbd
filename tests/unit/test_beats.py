"""Beats over real datagrams on loopback, one by one: who is heard, and how a worker learns that there is news."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace

import pytest

from phalanx.node import beats


@pytest.fixture
def ends(monkeypatch):
    """An ear and a beat whose threads do nothing by themselves, and the beat's socket."""
    with monkeypatch.context() as here, socket.socket(type=socket.SOCK_DGRAM) as ours:
        here.setattr(beats, "PORT", 17312)
        here.setattr(beats.threading, "Thread", lambda **_: SimpleNamespace(start=lambda: None))
        ear, beat = beats.Ear("127.0.0.1"), beats.Beat()
        here.setattr(beats.threading, "Thread", THREAD)
        ours.settimeout(5)
        beat.head = "127.0.0.1"
        yield ear, beat, ours
        ear._socket.close()


THREAD = threading.Thread


def exchange(ear, beat, ours) -> bool:
    """One beat and its answer; whether there was news."""
    beat.news.clear()
    answering = threading.Thread(target=ear.answer)
    answering.start()
    beat.once(ours)
    answering.join()
    return beat.news.is_set()


def test_a_worker_is_heard_and_told_of_a_new_generation(ends):
    ear, beat, _ = ends
    ear.generation = beat.generation = 3
    assert not exchange(*ends)
    first = ear.heard["127.0.0.1"]
    ear.generation = 4
    assert exchange(*ends)
    assert ear.heard["127.0.0.1"] > first


def test_a_silent_head_is_news(ends):
    _, beat, ours = ends
    ours.settimeout(0.01)
    beat.once(ours)
    assert beat.news.is_set()
