"""Whose directory the connections lie in that jobs share: this user's alone, or they are not shared."""

from __future__ import annotations

import os
import stat

import pytest

from phalanx.node.runner import login


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(login, "_KEPT_IN", str(tmp_path))
    return tmp_path / f"phalanx-lines-{os.getuid()}"


def test_a_connection_is_kept_under_its_instance_in_a_directory_of_this_users_own(place):
    options = login._kept_connection("i-1")
    assert f"ControlPath={place}/i-1" in options
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert login._kept_connection("i-1") == options


def test_none_is_kept_where_others_may_write(place):
    place.mkdir()
    place.chmod(0o770)
    assert login._kept_connection("i-1") == ()


def test_none_is_kept_where_somebody_has_put_a_link(place, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "elsewhere")
    assert login._kept_connection("i-1") == ()


def test_none_is_kept_where_the_directory_is_somebody_elses(place, monkeypatch):
    place.mkdir(mode=0o700)
    monkeypatch.setattr(login.os, "getuid", lambda: place.stat().st_uid + 1)
    monkeypatch.setattr(login.os, "mkdir", lambda *_: (_ for _ in ()).throw(FileExistsError))
    monkeypatch.setattr(login.os, "lstat", lambda _: place.stat())
    assert login._kept_connection("i-1") == ()
