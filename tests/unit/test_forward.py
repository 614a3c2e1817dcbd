"""Processes' output is forwarded as it comes, and stays in their pipes while the head does not read."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from phalanx.runner import frames
from phalanx.runner.loop import PAUSE_BYTES, Loop
from phalanx.runner.starter.counting import Counting
from phalanx.runner.starter.forward import Forwarder


class Taken:
    """Stands in for the channel to the head: what was sent, and how much of it is pending."""

    def __init__(self) -> None:
        self.pending = 0
        self.sent: list[tuple[int, int, bytes]] = []

    def send(self, frame: bytes) -> None:
        [(_, stream, number, payload)] = frames.FrameReader().feed(frame)
        self.sent.append((number, stream, payload))


@pytest.fixture
def out() -> Taken:
    return Taken()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def forwarder(loop: Loop, out: Taken) -> Forwarder:
    return Forwarder(loop, out, Counting())  # type: ignore[arg-type]


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    """Two pipes whose reading ends the forwarder closes."""
    found = [os.pipe(), os.pipe()]
    yield found
    for _, write in found:
        os.close(write)


def test_both_streams_go_on_with_their_number(forwarder, loop, out, pipes):
    forwarder.add(7, pipes[0][0], pipes[1][0])
    os.write(pipes[0][1], b"out\n")
    os.write(pipes[1][1], b"err\n")
    loop.turn(0.0)
    assert sorted(out.sent) == [(7, frames.STDOUT, b"out\n"), (7, frames.STDERR, b"err\n")]


def test_what_is_harmless_is_left_out(forwarder, loop, out, pipes):
    forwarder.add(7, pipes[0][0], pipes[1][0], "^alarm.*\n")
    os.write(pipes[0][1], b"alarm 1\nloss 2\n")
    os.write(pipes[1][1], b"alarm 2\n")
    loop.turn(0.0)
    assert out.sent == [(7, frames.STDOUT, b"loss 2\n")]


def test_nothing_is_read_while_the_head_takes_nothing(forwarder, loop, out, pipes):
    forwarder.add(7, pipes[0][0], pipes[1][0])
    out.pending = PAUSE_BYTES + 1
    forwarder.balance()
    os.write(pipes[0][1], b"later")
    loop.turn(0.0)
    assert out.sent == []
    out.pending = 0
    forwarder.balance()
    loop.turn(0.0)
    assert out.sent == [(7, frames.STDOUT, b"later")]


def test_a_process_that_starts_in_a_pause_waits_too(forwarder, loop, out, pipes):
    out.pending = PAUSE_BYTES + 1
    forwarder.balance()
    forwarder.add(7, pipes[0][0], pipes[1][0])
    os.write(pipes[0][1], b"later")
    loop.turn(0.0)
    assert out.sent == []


def test_the_last_output_of_a_process_is_sent_at_its_end_even_in_a_pause(forwarder, out, pipes):
    out.pending = PAUSE_BYTES + 1
    forwarder.balance()
    forwarder.add(7, pipes[0][0], pipes[1][0])
    os.write(pipes[0][1], b"bye")
    forwarder.drain(6)
    assert out.sent == []
    forwarder.drain(7)
    assert out.sent == [(7, frames.STDOUT, b"bye")]


def test_at_the_end_all_that_is_there_is_sent(forwarder, out, pipes):
    forwarder.add(7, pipes[0][0], pipes[1][0])
    os.write(pipes[1][1], b"bye")
    forwarder.drain_all()
    assert out.sent == [(7, frames.STDERR, b"bye")]
