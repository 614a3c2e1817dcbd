"""Jobs share connections only in a directory that belongs to this user alone."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from phalanx.runner import login


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(login, "_KEPT_IN", str(tmp_path))
    return tmp_path / f"phalanx-lines-{os.getuid()}"


def test_a_connection_is_kept_under_its_instance_in_a_directory_of_this_users_own(place):
    assert login._kept_connection("i-1") == f"{place}/i-1"
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert login._kept_connection("i-1") == f"{place}/i-1"
    assert list(place.iterdir()) == []


def test_none_is_kept_where_others_may_write(place):
    place.mkdir()
    place.chmod(0o770)
    assert login._kept_connection("i-1") == ""


def test_none_is_kept_where_somebody_has_put_a_link(place, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "elsewhere")
    assert login._kept_connection("i-1") == ""


def test_none_is_kept_where_the_directory_is_somebody_elses(place, monkeypatch):
    place.mkdir(mode=0o700)
    other = place.stat().st_uid + 1
    place.rename(place.with_name(f"phalanx-lines-{other}"))
    monkeypatch.setattr(login.os, "getuid", lambda: other)
    assert login._kept_connection("i-1") == ""


@pytest.mark.parametrize("call", ["mkdir", "mkfifo"])
def test_none_is_kept_where_the_disk_is_full(place, monkeypatch, call):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(login.os, call, full)
    assert login._kept_connection("i-1") == ""


def test_a_node_that_is_given_up_keeps_nobody_else_waiting(place):
    cut = []
    path = login._kept_connection("i-1")
    (place / "i-1").touch()
    line = login.Line(0, 0, 0, lambda: cut.append(True))
    login._cut(line, path)
    login._cut(line, path)
    assert (cut, list(place.iterdir())) == ([True, True], [])
