"""What the page gets of a job's output: the last lines of each moment, escaped and cut."""

from __future__ import annotations

import json

from phalanx.ui.log_stream import Batch, parsed


def taken(batch: Batch) -> dict:
    kind, data = batch.taken().decode().rstrip("\n").split("\n")
    assert kind == "event: lines"
    return json.loads(data.removeprefix("data: "))


def test_the_last_lines_are_kept_and_the_others_counted():
    batch = Batch()
    batch.add(b"".join(b"[0] %d\n" % n for n in range(100_000)) + b"[0] not com")
    found = taken(batch)
    assert (found["skipped"], len(found["lines"]), found["lines"][-1]) == (99_800, 200, ["", "0", "99999"])
    assert batch.taken() == b""
    batch.add(b"plete\n")
    assert taken(batch)["lines"] == [["", "0", "not complete"]]


def test_a_line_without_an_end_comes_at_the_end_or_in_pieces():
    batch = Batch()
    batch.add(b"[0] prompt")
    assert batch.taken() == b""
    batch.end()
    assert taken(batch)["lines"] == [["", "0", "prompt"]]
    batch.add(b"x" * (3 << 20))
    assert len(taken(batch)["lines"][0][2]) < 3000


def test_lines_with_a_text_are_found_without_regard_to_case():
    batch = Batch("eRRor")
    batch.add(b"[0] fine\n[1] ERROR here\n[2] error\n")
    found = taken(batch)
    assert (found["skipped"], [line[1] for line in found["lines"]]) == (0, ["1", "2"])


def test_time_rank_and_text_are_told_apart_and_escaped():
    line = b"2026-11-27T10:11:12.345Z [server 0] \x1b[31mred\x1b[0m \x1b[2J <b>\xe2\x80\xae \xff\r"
    assert parsed(line) == ("10:11:12.345", "server 0", "red \\x1b[2J <b>\\u202e \ufffd")
    assert parsed(b"[[[ odd") == ("", "", "[[[ odd")
    assert parsed(b"") == ("", "", "")


def test_of_a_progress_bar_the_last_state_is_shown():
    assert parsed(b"[0] 1 %\r50 %\r100 %")[2] == "100 %"
