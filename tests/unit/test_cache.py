"""The cache keeps the newest few files of a kind, and never fails."""

from __future__ import annotations

import os

from phalanx.code import bundle
from phalanx.code.cache import cache_directory, keep


def test_the_newest_of_a_kind_are_kept_and_other_kinds_left_alone(tmp_path):
    keep(tmp_path / "code-1.json", b"other", most=1)
    for number in range(5):
        path = tmp_path / f"runner-{number}.pyz"
        keep(path, b"%d" % number, most=9)
        os.utime(path, (number, number))
    keep(tmp_path / "runner-5.pyz", b"5", most=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("code-1.json", "runner-3.pyz", "runner-4.pyz", "runner-5.pyz")
    ]


def test_a_place_that_can_t_be_written_is_no_error(tmp_path):
    (tmp_path / "file").touch()
    keep(tmp_path / "file" / "runner-1.pyz", b"1", most=3)


def test_runners_of_earlier_versions_do_not_pile_up(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache_directory().mkdir()
    for number in range(9):
        (cache_directory() / f"runner-{number}.pyz").touch()
    content = bundle.runner_zip()
    kept = list(cache_directory().iterdir())
    assert len(kept) == 4
    assert content in [path.read_bytes() for path in kept]
