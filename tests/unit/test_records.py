"""A soak that was interrupted goes on where its record ends, also after midnight."""

from __future__ import annotations

import pytest
from benchmarks import measure


@pytest.mark.parametrize(
    ("kept", "record"),
    [
        ({}, "new"),
        ({"2026-11-22": "aaa"}, "2026-11-22"),
        ({"2026-11-21": "aa", "2026-11-22": "a"}, "2026-11-22"),
        # Complete: the next one begins again, also if the soak has other trials by now.
        ({"2026-11-21": "aa", "2026-11-22": "aaaa"}, "new"),
        # Of another seed.
        ({"2026-11-21": "aa", "2026-11-22": "bbb"}, "2026-11-21"),
        ({"speed-1-2026-11-22": "aa"}, "new"),
    ],
)
def test_the_newest_record_of_a_seed_is_gone_on_with_until_it_is_complete(kept, record, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    for date, done in kept.items():
        (tmp_path / f"weather-{date}.jsonl").write_text(done)
    found = measure.record_to_go_on("weather", 4, lambda path: path.read_text().count("a"))
    assert found == (
        measure.todays_result("weather", "jsonl") if record == "new" else tmp_path / f"weather-{record}.jsonl"
    )
