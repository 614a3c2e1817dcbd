"""A soak that was interrupted goes on where its record ends, also after midnight."""

from __future__ import annotations

import pytest
from benchmarks import measure


@pytest.mark.parametrize(
    ("kept", "record"),
    [
        ({}, "new"),
        ({"2026-11-22": "abc"}, "2026-11-22"),
        ({"2026-11-21": "ab", "2026-11-22": "a"}, "2026-11-22"),
        # Complete: the next one begins again.
        ({"2026-11-21": "ab", "2026-11-22": "abcd"}, "new"),
        # Of another seed.
        ({"2026-11-21": "ab", "2026-11-22": "xyz"}, "2026-11-21"),
        ({"speed-1-2026-11-22": "ab"}, "new"),
    ],
)
def test_the_newest_record_with_some_of_the_plan_is_gone_on_with_until_it_is_complete(
    kept, record, tmp_path, monkeypatch
):
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    for date, done in kept.items():
        (tmp_path / f"weather-{date}.jsonl").write_text(done)
    found = measure.record_to_go_on("weather", 4, lambda path: len(set("abcd") - set(path.read_text())))
    assert found == (
        measure.todays_result("weather", "jsonl") if record == "new" else tmp_path / f"weather-{record}.jsonl"
    )
