"""The job user, and whose keys may log in as whom."""

from __future__ import annotations

import os

from phalanx.node import files

_UID = 2000
_ADMINS = ("ubuntu", "ec2-user", "admin")
AUTHORIZED = "/etc/ssh/phalanx/authorized_keys"
# What shells and ssh read from a home directory when they start. All jobs share it, so these are root's.
_START_FILES = (
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".inputrc", ".pam_environment"),
    *(".zshenv", ".zprofile", ".zshrc", ".zlogin", ".kshrc", ".cshrc", ".tcshrc"),
    *(".rhosts", ".shosts", ".ssh/config", ".ssh/authorized_keys", ".ssh/authorized_keys2", ".ssh/rc"),
)
_START_TEXT = "# Root's, for no job may leave anything here for the next one.\n"
# Red Hat's bash reads it only from there; Debian's reads its own file by itself.
_BASHRC = "[ ! -r /etc/bashrc ] || . /etc/bashrc\n"


def single_uid(root: str = "") -> bool:
    """True in a user namespace that maps one uid only (the local cloud's fallback): every user is uid 0 there."""
    maps = files.read(f"{root}/proc/self/uid_map").split()
    return len(maps) == 3 and maps[2] == "1"


def make_user(name: str, root: str = "") -> int:
    """Make the job user, without a password and without sudo; the uid is the same on all nodes. Returns the uid."""
    uid = uid_of(name, root)
    if find(name, root) >= 0:
        return uid
    home = f"/home/{name}"
    # Not useradd: it can't give a second name to uid 0, and sshd without PAM refuses the "!" that it leaves in shadow.
    _append(f"{root}/etc/group", f"{name}:x:{uid}:")
    _append(f"{root}/etc/shadow", f"{name}:*:20000::::::")
    _append(f"{root}/etc/passwd", f"{name}:x:{uid}:{uid}:phalanx jobs:{home}:/bin/bash")
    _make_home(root + home, uid)
    return uid


def uid_of(name: str, root: str = "") -> int:
    """The uid that the job user has, or will have."""
    uid = find(name, root)
    return uid if uid >= 0 else 0 if single_uid(root) else _UID


def find(name: str, root: str = "") -> int:
    """The uid of a user in /etc/passwd, -1 when there is none."""
    for line in files.read(f"{root}/etc/passwd").splitlines():
        fields = line.split(":")
        if fields[0] == name:
            return int(fields[2])
    return -1


def authorize(job_user: str, key: str, root: str = "") -> None:
    """Let `key` log in as the job user and as the image's own user."""
    for user in (job_user, *_ADMINS):
        if key and find(user, root) >= 0:
            files.write(f"{root}{AUTHORIZED}/{user}", key + "\n")


def _append(path: str, line: str) -> None:
    mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o640
    text = files.read(path)
    files.write(path, text + ("" if text.endswith("\n") or not text else "\n") + line + "\n", mode)


def _make_home(home: str, uid: int) -> None:
    """A directory as /tmp is one: the job user makes and removes what is its own there, and nothing of root's."""
    for name in _START_FILES:
        files.write(f"{home}/{name}", _START_TEXT + (_BASHRC if name == ".bashrc" else ""))
    for directory in (f"{home}/.ssh", home):
        files.chown(directory, 0, uid)
        os.chmod(directory, 0o1775)
