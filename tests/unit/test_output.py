"""Ranks' output is kept byte for byte and in order."""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.node.validate import Invalid
from phalanx.runner.files.output import ENDED, OutputReader, OutputWriter, file_name
from phalanx.runner.verbs.last_lines import first_of_last_lines


def chunk(number: int) -> tuple[int, int, bytes]:
    """Make (rank, stream, data) from a number, so that all chunks are drawn at once."""
    return number % 3, 1 + number // 3 % 2, bytes(value % 256 for value in range(number, number + 1 + number // 6))


def test_the_tail_has_the_last_state_of_a_progress_bar(tmp_path):
    writer = OutputWriter(str(tmp_path))
    number = writer.add("0", "node", is_rank=True)
    writer.write(number, 1, b"one\r\n\r10%\r20%\r\nTraceback\n  a\x0cb\nlast")
    assert writer.tail(number, 9) == ["one", "20%", "Traceback", "  a\x0cb", "last"]
    assert writer.tail(number, 1) == ["last"]


def close(writer: OutputWriter, reader: OutputReader) -> None:
    """A process that writes or reads output ends soon; this one tries hundreds of outputs."""
    files = (writer._index, writer._processes, *(fd for fd, _ in writer._files.values()), *reader._files.values())
    for file in files:
        os.close(file)


@settings(deadline=None)
@given(st.binary(max_size=30).map(lambda numbers: [chunk(number) for number in numbers]))
def test_the_merged_order_and_every_byte_come_back(chunks):
    with tempfile.TemporaryDirectory() as directory:
        writer = OutputWriter(directory)
        numbers = [writer.add(str(rank), "node", is_rank=True) for rank in range(3)]
        for rank, stream, data in chunks:
            writer.write(numbers[rank], stream, data)
        assert writer.flush() == bool(chunks)
        reader = OutputReader(directory)
        assert [process["label"] for process in reader.refresh()] == ["0", "1", "2"]
        assert [(record[3], record[4], reader.data(record)) for _, record in reader.records()] == chunks
        close(writer, reader)


def test_a_job_whose_output_is_gone_does_not_shift_the_numbers_of_others(tmp_path):
    (tmp_path / "there.log").write_bytes(b"x")
    writer = OutputWriter(str(tmp_path / "array"))
    with pytest.raises(FileNotFoundError):
        writer.adopt("0.0", "node", str(tmp_path / "gone.log"), "0.rank-0.log")
    assert writer.adopt("1.0", "node", str(tmp_path / "there.log"), "1.rank-0.log") == 0
    assert [process["label"] for process in OutputReader(str(tmp_path / "array")).refresh()] == ["1.0"]


def test_output_that_a_power_failure_cut_short_is_called_so(tmp_path):
    writer = OutputWriter(str(tmp_path))
    number = writer.add("0", "node", is_rank=True)
    writer.write(number, 1, b"confirmed")
    writer.flush()
    os.truncate(tmp_path / "rank-0.log", 4)
    reader = OutputReader(str(tmp_path))
    reader.refresh()
    with pytest.raises(Invalid, match=r"rank-0\.log ends before"):
        [reader.data(record) for _, record in reader.records()]


def test_reading_goes_on_from_a_position(tmp_path):
    writer = OutputWriter(str(tmp_path))
    number = writer.add("0", "node", is_rank=True)
    writer.write(number, 1, b"first")
    writer.flush()
    reader = OutputReader(str(tmp_path))
    position = [at for at, _ in reader.records()][-1]
    writer.write(number, 1, b"second")
    writer.ended(number, -9)
    writer.flush()
    later = OutputReader(str(tmp_path), position)
    later.refresh()
    records = [record for _, record in later.records()]
    assert later.data(records[0]) == b"second"
    assert records[1][2:] == (128 + 9, number, ENDED)
    assert later.position == later.end() == 3


LINES = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([b"a", b"b\n", b"\n", b"c\nd\n", b"e\nf"])), max_size=12)


def whole_lines(chunks: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """In the order of their ends; what has no end is no line here."""
    rests: dict[int, bytes] = {}
    found = []
    for rank, data in chunks:
        *lines, rests[rank] = (rests.get(rank, b"") + data).split(b"\n")
        found += [(rank, line) for line in lines]
    return found


@settings(deadline=None)
@given(LINES, st.integers(0, 8), st.integers(0, 12), st.sampled_from([None, "1"]))
def test_the_last_lines_are_there_from_their_beginnings(chunks, count, first, label):
    with tempfile.TemporaryDirectory() as directory:
        writer = OutputWriter(directory)
        for rank in range(3):
            writer.add(str(rank), "node", is_rank=True)
        for rank, data in chunks:
            writer.write(rank, 1, data)
            if rank == 2:
                writer.ended(rank, 0)
        writer.flush()
        every = [
            chunk for rank, data in chunks for chunk in ([(rank, data), (rank, b"")] if rank == 2 else [(rank, data)])
        ]
        first = min(first, len(every))
        reader = OutputReader(directory)
        begin = first_of_last_lines(reader, range(first, len(every)), count, label)
        assert first <= begin <= len(every)
        wanted, seen = (
            [line for line in whole_lines(some) if label in (None, str(line[0]))]
            for some in (every[first:], every[begin:])
        )
        assert seen[len(seen) - min(count, len(seen)) :] == wanted[len(wanted) - min(count, len(wanted)) :]
        close(writer, reader)


def test_the_last_lines_of_much_output_need_little_of_it(tmp_path, monkeypatch):
    writer = OutputWriter(str(tmp_path))
    number = writer.add("0", "node", is_rank=True)
    for _ in range(9000):
        writer.write(number, 1, b"a line\n")
    writer.flush()
    assert first_of_last_lines(OutputReader(str(tmp_path)), range(9000), 3, None) == 8996


def test_a_full_disk_ends_the_writing_and_not_the_job(tmp_path):
    (tmp_path / "rank-0.log").symlink_to("/dev/full")
    writer = OutputWriter(str(tmp_path))
    number = writer.add("0", "node", is_rank=True)
    for _ in range(3):
        writer.write(number, 1, b"lost")
    assert "No space left on device" in writer.error
    assert not writer.flush()


def test_the_tail_is_of_this_process_alone(tmp_path):
    writer = OutputWriter(str(tmp_path))
    first, second = (writer.add(str(rank), "node", is_rank=True) for rank in range(2))
    writer.write(first, 1, b"".join(b"line %d\n" % number for number in range(100)))
    writer.write(second, 1, b"other\n")
    assert writer.tail(first, 2) == ["line 98", "line 99"]


def test_the_tail_ends_before_a_box_of_stars(tmp_path):
    writer = OutputWriter(str(tmp_path))
    rank = writer.add("0", "node", is_rank=True)
    stars = "*" * 42
    writer.write(
        rank, 1, f"{stars}\nsettings\n{stars}\nKeyError: 'x'\n\n{stars}\nUncaught exception\n{stars}\n\n".encode()
    )
    assert writer.tail(rank, 2) == [stars, "KeyError: 'x'"]


def test_a_label_can_not_leave_the_directory():
    assert file_name("../../etc/passwd", is_rank=True) == "rank-.._.._etc_passwd.log"
    assert file_name("torchrun@deeplearning-worker2", is_rank=False) == "torchrun@deeplearning-worker2.log"
