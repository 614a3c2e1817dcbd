"""What root runs on a node of an EMR cluster that is given back, where jobs may still run: it trusts none of them."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest

from phalanx.node import release


def process(monkeypatch, **files: str) -> list[str]:
    """Show one process, number 7; return what was read of the files, and what was ended."""
    touched: list[str] = []

    def read(path: str) -> str:
        touched.append(path)
        return files.get(path.rpartition("/")[2], "")

    monkeypatch.setattr(release.glob, "glob", lambda pattern: [pattern.replace("[0-9]*", "7")])
    monkeypatch.setattr(release, "read", read)
    monkeypatch.setattr(release, "remove", lambda _: None)
    monkeypatch.setattr(release, "run", lambda *_: None)
    monkeypatch.setattr(release, "end", lambda pid: touched.append(f"ended {pid}"))
    return touched


def status(uid: int, state: str = "S") -> str:
    return f"Name:\tpython3\nState:\t{state} (…)\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"


@pytest.mark.parametrize(("uid", "is_ended"), [(0, True), (2000, False)])
def test_only_root_s_agent_is_read_and_ended(monkeypatch, uid, is_ended):
    cmdline = "/usr/bin/python3\0-IS\0/tmp/start\0"
    touched = process(monkeypatch, cmdline=cmdline, status=status(uid), start="import os\n#agent=1\n")
    release.stop_agent()
    assert ("/tmp/start" in touched, "ended 7" in touched) == (is_ended, is_ended)


def test_a_process_that_can_not_be_ended_is_named_after_a_while(monkeypatch):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(release.time, "monotonic", lambda: next(clock))
    process(monkeypatch, status=status(2000, "D"))
    with pytest.raises(SystemExit, match=r"processes of phalanx can't be ended: \[7\]"):
        release.end_processes(2000)


def test_an_account_that_the_agent_did_not_make_is_left(monkeypatch):
    monkeypatch.setattr(release.pwd, "getpwnam", lambda _: SimpleNamespace(pw_uid=2000, pw_gecos="Ph. Alanx"))
    assert release.uid_of("phalanx") == -1
    monkeypatch.setattr(release.pwd, "getpwnam", lambda _: SimpleNamespace(pw_uid=2000, pw_gecos="phalanx jobs"))
    assert release.uid_of("phalanx") == 2000


def test_what_can_t_be_removed_is_named_before_the_account_is_forgotten(monkeypatch):
    forgotten: list[str] = []
    monkeypatch.setattr(release, "uid_of", lambda _: 2000)
    for name in ("stop_agent", "end_processes", "block", "keep_others", "run"):
        monkeypatch.setattr(release, name, lambda *_, **__: [])
    monkeypatch.setattr(release, "keep_lines", lambda path, _: forgotten.append(path))
    monkeypatch.setattr(release.os.path, "lexists", lambda path: path == "/home/phalanx")
    with pytest.raises(SystemExit, match="/home/phalanx can't be removed"):
        release.main()
    assert "/etc/passwd" not in forgotten, "another try finds the home by its account"


def test_a_home_of_many_files_has_hours_to_be_removed(monkeypatch):
    limits: dict[str, float] = {}
    monkeypatch.setattr(release.subprocess, "run", lambda argv, timeout, **_: limits.update({argv[0]: timeout}) or None)
    release.remove("/missing")
    release.run("ip")
    assert limits["rm"] >= 3600 and limits["ip"] == 60


def test_a_full_disk_keeps_no_file_from_being_given_back(monkeypatch, tmp_path):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    passwd = tmp_path / "passwd"
    passwd.write_text("root:x:0:0\nphalanx:x:2000:2000\nhadoop:x:1001:1001\n")
    monkeypatch.setattr(release.os, "rename", full)
    release.keep_lines(str(passwd), "phalanx:")
    assert passwd.read_text() == "root:x:0:0\nhadoop:x:1001:1001\n"
    assert list(tmp_path.iterdir()) == [passwd]
