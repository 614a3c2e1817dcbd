"""Whether somebody uses a node: which processes count, and what is shown on terminals."""

import os
import pty

import pytest

from phalanx.node import activity


@pytest.mark.parametrize(
    "argv",
    [
        [b"sshd: phalanx@pts/0"],
        [b"/usr/lib/systemd/systemd", b"--user"],
        [b"(sd-pam)"],
        [b"-bash"],
        [b"/bin/bash", b"--login", b"-i"],
        [b"tmux: server"],
        [b"ssh: /run/user/2000/x [mux]"],
        [b""],
    ],
)
def test_what_a_login_leaves_behind_is_no_use(argv):
    assert activity.at_rest(argv)


@pytest.mark.parametrize(
    "argv",
    [
        [b"python3", b"train.py"],
        [b"/bin/bash", b"train.sh"],
        [b"bash", b"-c", b"mpiexec train"],
        [b"sh", b"-lc", b"sleep 9"],
        [b"mpiexec", b"-n", b"32", b"python"],
    ],
)
def test_programs_of_users_are_use(argv):
    assert not activity.at_rest(argv)


def test_a_node_without_programs_was_used_when_somebody_typed_last(tmp_path):
    (tmp_path / "0").touch()
    (tmp_path / "ptmx").touch()
    os.utime(tmp_path / "0", (1234.0, 9999.0))
    proc = tmp_path / "proc"
    proc.mkdir()
    assert activity.last_use(str(proc), str(tmp_path)) == 1234.0
    assert activity.last_use(str(proc), str(tmp_path / "none")) == 0.0


def test_a_notice_is_shown_on_every_terminal(tmp_path):
    reader, terminal = pty.openpty()
    (tmp_path / "7").symlink_to(os.ttyname(terminal))
    (tmp_path / "8").symlink_to(tmp_path / "gone")
    activity.show("the lease ends in 10 min", str(tmp_path))
    shown = os.read(reader, 200).decode()
    os.close(reader)
    os.close(terminal)
    assert "phalanx: the lease ends in 10 min" in shown
