"""A shared directory that is kept, under local clouds whose nodes count their ids from different numbers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from localcloud.nodes import userns
from localcloud.storage import owners

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
FIRST = userns.root_of_nodes("range")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """As versions left it in which nodes had this machine's ids."""
    top = tmp_path / "fs-1"
    (top / "job").mkdir(parents=True)
    for name in ("job/mine", "roots"):
        (top / name).touch(mode=0o640)
    for name in ("job/mine", "job", ""):
        os.chown(top / name, 2000, 2000)
    return top


def ids(path: Path) -> tuple[int, int]:
    known = path.lstat()
    return known.st_uid, known.st_gid


def test_the_job_users_files_are_the_job_users_again_and_roots_roots(kept):
    owners.shift(kept, FIRST)
    assert [ids(kept / name) for name in ("", "job/mine", "roots")] == [(FIRST + 2000,) * 2] * 2 + [(FIRST,) * 2]
    assert (kept / "job/mine").stat().st_mode & 0o777 == 0o640


def test_they_go_back_in_mode_root(kept):
    owners.shift(kept, FIRST)
    owners.shift(kept, 0)
    assert [ids(kept / name) for name in ("", "job/mine", "roots")] == [(2000, 2000)] * 2 + [(0, 0)]


def test_it_goes_on_where_an_end_has_interrupted_it(kept):
    os.chown(kept / "job", FIRST + 2000, FIRST + 2000)
    owners.shift(kept, FIRST)
    assert ids(kept / "job") == ids(kept / "job/mine") == (FIRST + 2000,) * 2


def test_no_link_leads_it_elsewhere(kept, tmp_path):
    (tmp_path / "outside").touch()
    (kept / "link").symlink_to(tmp_path / "outside")
    (kept / "up").symlink_to(tmp_path)
    owners.shift(kept, FIRST)
    assert ids(tmp_path / "outside") == (0, 0)
    assert ids(kept / "link") == (FIRST, FIRST)


def test_directories_may_be_as_deep_as_a_job_makes_them(kept):
    deepest = kept / "/".join(["d"] * 1500)
    subprocess.run(["mkdir", "-p", deepest], check=True)
    owners.shift(kept, FIRST)
    assert ids(deepest) == (FIRST, FIRST)
    # pytest's own removal is recursive.
    subprocess.run(["rm", "-rf", kept], check=True)


def test_one_that_is_gone_is_no_error(tmp_path):
    owners.shift(tmp_path / "fs-1", FIRST)
