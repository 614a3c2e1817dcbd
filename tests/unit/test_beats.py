"""Beats over real datagrams on loopback: who is heard, and how a worker learns that there is news."""

from __future__ import annotations

import time

import pytest

from phalanx.node import beats


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(beats, "EVERY_S", 0.01)
    monkeypatch.setattr(beats, "_ANSWER_S", 0.2)
    monkeypatch.setattr(beats, "PORT", 17312)


def test_a_worker_is_heard_and_told_of_a_new_generation(quick):
    ear, beat = beats.Ear("127.0.0.1"), beats.Beat()
    ear.generation = beat.generation = 3
    beat.head = "127.0.0.1"
    deadline = time.monotonic() + 5
    while "127.0.0.1" not in ear.heard and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)  # what came before the head's address was known is over
    beat.news.clear()
    assert not beat.news.wait(0.1), "there was no news"
    first = ear.heard["127.0.0.1"]
    ear.generation = 4
    assert beat.news.wait(5)
    assert ear.heard["127.0.0.1"] > first


def test_a_silent_head_is_news(quick, monkeypatch):
    monkeypatch.setattr(beats, "PORT", 17313)
    beat = beats.Beat()
    beat.head = "127.0.0.1"
    assert beat.news.wait(5)
