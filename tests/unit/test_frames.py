"""Frames and lines, however the network splits them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import JobError
from phalanx.jobs import job_output
from phalanx.jobs.job_output import LONGEST_LINE_BYTES, FollowDecoder, LineBuffer, OutputLine
from phalanx.runner import frames
from phalanx.runner.verbs import follow as wire

# Lists of small numbers are drawn as bytes: one draw instead of one for each.
SIZES = st.binary(max_size=20).map(lambda data: [1 + byte % 40 for byte in data])
WORDS = (b"a", b"\xff", b"\n", b"\r", b"\r\n", b"long line ")
PAYLOADS = st.lists(st.tuples(st.integers(1, 14), st.integers(0, 2**32 - 1), st.binary(max_size=300)), max_size=8)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, start = [], 0
    for size in sizes:
        pieces.append(data[start : start + size])
        start += size
    return [*pieces, data[start:]]


@settings(deadline=None)
@given(PAYLOADS, SIZES, st.binary(max_size=50).filter(lambda noise: b"\0" not in noise))
def test_frames_survive_any_cut_and_any_login_script(payloads, sizes, noise):
    sent = b"".join(frames.pack(kind, number, payload, frames.STDERR) for kind, number, payload in payloads)
    reader = frames.FrameReader(preamble=True)
    got = [frame for piece in cut(noise + frames.MAGIC + sent, sizes) for frame in reader.feed(piece)]
    assert got == [(kind, frames.STDERR, number, payload) for kind, number, payload in payloads]
    assert reader.preamble == noise


def test_what_is_no_frame_is_refused_before_memory_is_taken():
    with pytest.raises(frames.ChannelBrokenError, match="frame of"):
        list(frames.FrameReader().feed(b"\xff" * 12))
    with pytest.raises(frames.ChannelBrokenError, match="login scripts"):
        list(frames.FrameReader(preamble=True).feed(b"x" * 100_000))


@settings(deadline=None)
@given(st.binary(max_size=40), SIZES)
def test_lines_are_the_same_however_they_were_cut(choices, sizes):
    data = b"".join(WORDS[choice % len(WORDS)] for choice in choices)
    buffer = LineBuffer()
    lines = [line for piece in cut(data, sizes) for line in buffer.feed(piece)] + buffer.end()
    whole = LineBuffer()
    assert lines == whole.feed(data) + whole.end()
    assert b"\n".join(lines) == data.removesuffix(b"\n")


def test_a_line_without_end_comes_in_pieces_and_takes_no_memory():
    buffer = LineBuffer()
    pieces = [piece for _ in range(33) for piece in (*buffer.feed(b"x" * (1 << 20)), *buffer.pieces())]
    assert {len(piece) for piece in pieces} == {LONGEST_LINE_BYTES}
    assert sum(map(len, pieces + buffer.end())) == 33 << 20


@pytest.mark.parametrize(
    ("data", "draft"),
    [(b"", b""), (b"text", b""), (b"\r 10%\r 20%", b" 20%"), (b"10%\r20%\r", b"20%"), (b"10%\r20%\nnext", b"")],
)
def test_a_line_that_is_being_written_over_shows_what_a_terminal_would(data, draft):
    buffer = LineBuffer()
    buffer.feed(data)
    assert buffer.draft() == draft


def test_drafts_come_only_to_those_that_ask():
    sent = wire.MAGIC + frame(wire.PROCESS, b'{"number": 0, "label": "3", "node": "worker2", "file": "x"}')
    sent += frame(wire.OUTPUT, b"\r10%") + frame(wire.OUTPUT, b"\r20%") + frame(wire.OUTPUT, b"\r30%\n")
    lines = [(event.data, event.is_draft) for event in FollowDecoder(drafts=True).feed(sent)]
    assert lines == [(b"10%", True), (b"20%", True), (b"\r10%\r20%\r30%", False)]
    assert [event.data for event in FollowDecoder().feed(sent)] == [b"\r10%\r20%\r30%"]


def test_a_long_line_stays_one_line():
    buffer = LineBuffer()
    sent = cut(b"x" * 300_000 + b"\r\nnext\n", [65_536] * 4)
    assert [line for piece in sent for line in buffer.feed(piece)] == [b"x" * 300_000 + b"\r", b"next"]


def frame(kind: int, payload: bytes, position: int = 0, number: int = 0, stream: int = 1) -> bytes:
    return wire.HEADER.pack(kind, stream, number, len(payload), position, 5_000_000_000) + payload


def test_followed_output_is_whole_lines_of_each_process():
    process = json.dumps({"number": 0, "label": "3", "node": "worker2", "file": "rank-3.log"}).encode()
    sent = b"welcome!\n" + wire.MAGIC + frame(wire.PROCESS, process)
    sent += frame(wire.OUTPUT, b"one\ntw", 1) + frame(wire.OUTPUT, b"oops", 2, stream=2) + frame(wire.OUTPUT, b"o\n", 3)
    sent += frame(wire.ENDED_PROCESS, b"", 4) + frame(wire.STATE, b'{"state": "running"}', 4)
    decoder = FollowDecoder()
    events = [event for byte in sent for event in decoder.feed(bytes([byte]))]
    assert events == [
        OutputLine("3", "worker2", "stdout", 5.0, b"one"),
        OutputLine("3", "worker2", "stdout", 5.0, b"two"),
        OutputLine("3", "worker2", "stderr", 5.0, b"oops", has_end=False),
        {"state": "running"},
    ]
    assert decoder.position == 4


def announced(number: int, label: str = "") -> bytes:
    description = {"number": number, "label": label or str(number), "node": "worker2", "file": "x"}
    return frame(wire.PROCESS, json.dumps(description).encode(), number=number)


def test_lines_without_end_of_many_processes_take_bounded_memory_together(monkeypatch):
    monkeypatch.setattr(job_output, "MOST_PENDING_BYTES", 10_000)
    decoder = FollowDecoder()
    events = list(decoder.feed(wire.MAGIC + b"".join(map(announced, range(100)))))
    sizes = dict.fromkeys((str(number) for number in range(100)), 0)
    sent = came = 0
    for length in range(1, 301):
        for number in range(100):
            stream = 1 + length % 256 if length < 255 else 2
            new = list(decoder.feed(frame(wire.OUTPUT, b"x" * length, number=number, stream=stream)))
            events += new
            sizes[str(number)] += length
            sent += length
            came += sum(len(event.data) for event in new)
        assert sent - came <= 10_000
    for number in range(100):
        events += decoder.feed(frame(wire.ENDED_PROCESS, b"", number=number))
    for event in events:
        sizes[event.process] -= len(event.data)
    assert set(sizes.values()) == {0}, "every byte came"
    assert not decoder._lines, "processes that have ended take no memory"


def test_short_lines_of_other_processes_stay_whole_beside_a_long_one(monkeypatch):
    monkeypatch.setattr(job_output, "MOST_PENDING_BYTES", 1000)
    decoder = FollowDecoder()
    list(decoder.feed(wire.MAGIC + announced(0) + announced(1) + frame(wire.OUTPUT, b"be")))
    long = list(decoder.feed(frame(wire.OUTPUT, b"x" * 2000, number=1)))
    assert [(event.process, len(event.data)) for event in long] == [("1", 2000)]
    assert [event.data for event in decoder.feed(frame(wire.OUTPUT, b"gun\n"))] == [b"begun"]


def test_a_process_is_not_described_at_any_length():
    with pytest.raises(JobError, match="invalid output"):
        list(FollowDecoder().feed(wire.MAGIC + announced(0, "x" * 10_000)))


def test_invalid_output_of_a_head_is_reported():
    with pytest.raises(JobError, match="sent invalid output"):
        list(FollowDecoder().feed(b"y" * 100_000))
