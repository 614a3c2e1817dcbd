"""`phalanx plot` of files on this machine: text, JSON, several places side by side, and what a job may write there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from event_files import event_file, scalar

from phalanx.ui import drawing
from phalanx.ui.curves import read_directory

HOSTILE = "loss $\\frac{<b>\x1b[2J\u202e"


def written(directory: Path, *events: bytes, **tables: str) -> str:
    (directory / "runs").mkdir(parents=True)
    if events:
        (directory / "runs/events.out.tfevents.1.here").write_bytes(event_file(events))
    for name, text in tables.items():
        (directory / f"{name}.csv").write_text(text)
    return str(directory)


@pytest.fixture
def two(tmp_path) -> tuple[str, str]:
    return tuple(
        written(tmp_path / name, *(scalar("loss", step, first / (1 + step)) for step in range(30)))
        for name, first in (("small", 1.0), ("large", 2.0))
    )  # type: ignore[return-value]


def test_curves_of_one_name_are_one_chart_with_a_mark_for_each(phalanx, two):
    assert phalanx("plot", *two) == 0
    shown = phalanx.out
    assert shown.count("loss  (runs)") == 1 and "      2 |o" in shown
    assert f"* {two[0]}: 0.03333 at 29" in shown and f"o {two[1]}: 0.06667 at 29" in shown
    assert all(len(line) <= 100 for line in shown.splitlines() if "|" in line)


def test_json_has_every_point_and_its_file(phalanx, two):
    assert phalanx("plot", two[0], "--json") == 0
    (curve,) = json.loads(phalanx.out)["curves"]
    assert (curve["job"], curve["name"], curve["place"]) == (two[0], "loss", "runs")
    assert curve["points"][:2] == [[0, 1.0], [1, 0.5]] and len(curve["points"]) == 30


def test_names_choose_curves_and_none_is_an_error_with_a_code(phalanx, tmp_path):
    place = written(tmp_path / "job", scalar("loss", 1, 1.0), acc="step,acc\n1,0.5\n")
    assert phalanx("plot", place, "--curve", "a*") == 0
    shown = phalanx.out
    assert "acc  (acc.csv)" in shown and "loss" not in shown
    assert phalanx("plot", place, "--curve", "none", "--json") == 2
    phalanx.refused("no-curves", place)
    assert phalanx("plot", f"{place}/missing") == 2
    phalanx.refused("no-directory", f"{place}/missing")


def test_text_and_numbers_of_a_job_are_only_shown(phalanx, tmp_path):
    huge = "step,huge\n1,1.7e308\n2,nan\n3,-1.7e308\n1e308,5e-324\n"
    place = written(tmp_path / "job", scalar(HOSTILE, 1, 1.0), huge=huge)
    assert phalanx("plot", place) == 0
    shown = phalanx.out
    assert "\x1b" not in shown and "\u202e" not in shown and "\\x1b[2J\\u202e" in shown and "1.7e+308" in shown


def test_a_file_that_is_cut_short_is_named_and_what_comes_before_is_drawn(phalanx, tmp_path):
    place = written(tmp_path / "job")
    whole = event_file([scalar("loss", step, 1.0) for step in range(9)])
    (tmp_path / "job/runs/events.out.tfevents.2.here").write_bytes(whole[:-5])
    (tmp_path / "job/link.csv").symlink_to("/etc/passwd")
    assert phalanx("plot", place) == 0
    assert "events.out.tfevents.2.here ends within a record" in phalanx.err and "1 at 7" in phalanx.out


def test_curves_of_several_places_in_one_job_are_charts_of_their_own():
    def curve(place: str, *points: tuple[float, float]) -> dict[str, object]:
        return {"name": "loss", "place": place, "points": list(points)}

    apart = drawing.charts({"a": [curve("train", (1, 1)), curve("test", (1, 2))], "b": [curve("test", (1, 3))]})
    assert [(one.place, list(one.lines)) for one in apart] == [("train", ["a"]), ("test", ["a", "b"])]
    # Runs have other directories; and a job that was restarted continues in another file.
    (one,) = drawing.charts({"a": [curve("r1", (2, 2)), curve("r1", (1, 1))], "b": [curve("r2", (1, 3))]})
    assert one.lines == {"a": [(1, 1), (2, 2)], "b": [(1, 3)]}


def test_a_picture_needs_the_extra_and_says_so(phalanx, monkeypatch, two, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert phalanx("plot", two[0], "--output", str(tmp_path / "x.png"), "--json") == 1
    phalanx.refused("extra-missing", "phalanx[plot]")
    assert not (tmp_path / "x.png").exists() and "curves" not in json.loads(phalanx.out)


def test_what_a_directory_has_is_bounded(tmp_path):
    place = written(tmp_path / "job", **{f"table{number}": "step,a\n1,2\n" for number in range(40)})
    assert len(read_directory(Path(place))["curves"]) == 16
