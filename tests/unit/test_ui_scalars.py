"""Curves from event files and CSV: what is read, in any pieces, and what is said of files that are cut or damaged."""

from __future__ import annotations

import math
import random

import pytest
from event_files import event_file, record, scalar

from phalanx.ui import scalars
from phalanx.ui.scalars import CsvFile, EventFile


def points(file: scalars.ScalarFile, name: str) -> list[tuple[float, float | None]]:
    return list(zip(file.curves[name].steps, file.curves[name].values, strict=True))


def fed(file: scalars.ScalarFile, data: bytes, *, at_once: int = 1 << 20) -> scalars.ScalarFile:
    for start in range(0, len(data), at_once):
        file.feed(data[start : start + at_once])
    return file


# Written by tensorboardX 2: "loss" is 1, 1/2 and 1/3 at 0, 10 and 20.
WRITTEN = bytes.fromhex(
    "1800000000000000a37f4b2209f46f51e683c2da411a0d627261696e2e4576656e743a32c87307fb1800000000000000a37f4b22"
    "09427f51e683c2da412a0d0a0b0a046c6f7373150000803f2aab77b51a00000000000000129bd82d09f98251e683c2da41100a2a"
    "0d0a0b0a046c6f7373150000003f8470707b1a00000000000000129bd82d091d8851e683c2da4110142a0d0a0b0a046c6f737315"
    "abaaaa3e311792ab"
)


def test_a_file_of_another_writer_is_read():
    file = fed(EventFile(), WRITTEN)
    assert [step for step, _ in points(file, "loss")] == [0, 10, 20] and file.problem == ""
    assert file.curves["loss"].values == pytest.approx([1, 1 / 2, 1 / 3])


@pytest.mark.parametrize("at_once", [1, 7, 1 << 20])
def test_scalars_of_every_form_are_read_in_any_pieces(at_once):
    data = event_file(
        [scalar("loss", 1, 0.5), scalar("loss", 2, 0.25, "float"), scalar("loss", 3, 0.125, "double")],
    )
    file = fed(EventFile(), data, at_once=at_once)
    assert (points(file, "loss"), file.problem, file.rest) == ([(1, 0.5), (2, 0.25), (3, 0.125)], "", 0)


def test_a_file_that_is_cut_short_shows_what_comes_before():
    data = event_file([scalar("loss", step, 1.0) for step in range(9)])
    file = fed(EventFile(), data[:-5])
    assert len(points(file, "loss")) == 8 and file.problem == "" and file.rest > 0
    file.feed(data[-5:])
    assert len(points(file, "loss")) == 9 and file.rest == 0


def test_a_damaged_file_shows_what_comes_before_and_is_named_with_its_place():
    good = event_file([scalar("loss", 1, 1.0)])
    file = fed(EventFile(), good + b"\x01" * 40 + event_file([scalar("loss", 2, 2.0)]))
    assert points(file, "loss") == [(1, 1.0)] and f"byte {len(good)}" in file.problem


def test_a_record_that_is_no_event_is_named():
    file = fed(EventFile(), event_file([scalar("loss", 1, 1.0)]) + record(b"\xff" * 30))
    assert points(file, "loss") == [(1, 1.0)] and file.problem


def test_a_large_record_is_skipped_without_being_kept():
    data = event_file([b"\x2a" + b"\x80\x80\x08" + b"x" * (1 << 17), scalar("loss", 5, 1.0)])
    file = EventFile()
    for start in range(0, len(data), 1 << 12):
        file.feed(data[start : start + (1 << 12)])
        assert len(file._data) <= 1 << 14
    assert points(file, "loss") == [(5, 1.0)]


def test_values_that_are_no_numbers_are_gaps():
    file = fed(EventFile(), event_file([scalar("loss", 1, math.nan), scalar("loss", 2, math.inf)]))
    assert points(file, "loss") == [(1, None), (2, None)]


def test_curves_and_points_are_bounded_and_the_newest_is_there():
    file = fed(EventFile(), event_file([scalar(f"curve {n}", 1, 1.0) for n in range(100)]))
    assert len(file.curves) == scalars.MOST_CURVES
    curve = scalars.Curve()
    for step in range(100_001):
        curve.add(step, step)
        assert curve.steps[-1] == step
    assert len(curve.steps) <= scalars.MOST_POINTS + 1 and curve.steps == sorted(curve.steps)


@pytest.mark.parametrize("seed", range(20))
def test_no_bytes_raise_anything(seed):
    chance = random.Random(seed)
    good = event_file([scalar("loss", step, 1.0) for step in range(5)])
    at = chance.randrange(len(good))
    for data in (chance.randbytes(400), good[:at] + chance.randbytes(3) + good[at + 3 :], record(chance.randbytes(60))):
        fed(EventFile(), data, at_once=chance.randrange(1, 50))
        fed(CsvFile(), data, at_once=chance.randrange(1, 50))


@pytest.mark.parametrize("at_once", [1, 5, 1000])
def test_columns_of_numbers_are_curves_over_the_column_of_steps(at_once):
    file = fed(CsvFile(), b"\xef\xbb\xbfstep,loss,who\r\n1,0.5,a\n2,nan,b\n3,0.25,c\n4,0.2", at_once=at_once)
    assert {name: points(file, name) for name in file.curves} == {"loss": [(1, 0.5), (2, None), (3, 0.25)]}


def test_without_a_column_of_steps_lines_are_counted():
    assert points(fed(CsvFile(), b"loss\n0.5\n\n0.25\n"), "loss") == [(1, 0.5), (2, 0.25)]


def test_a_line_without_an_end_is_named():
    file = fed(CsvFile(), b"loss\n1\n" + b"9" * (1 << 17))
    assert points(file, "loss") == [(1, 1.0)] and "line" in file.problem


def test_a_line_of_other_length_is_left_out():
    assert points(fed(CsvFile(), b"step,loss\n1,2\n3\n4,5,6\n7,8\n"), "loss") == [(1, 2.0), (7, 8.0)]
