"""The job user, and the keys that may log in."""

from __future__ import annotations

import os

from phalanx.node import files

UID = 2000
"""The job user's, on all nodes."""
_ADMINS = ("ubuntu", "ec2-user", "admin", "hadoop")
# An id that Debian and Red Hat give to no account.
_NO_ACCOUNT = 65533
# Fields of /etc/passwd.
_USER, _GROUP = 2, 3
AUTHORIZED = "/etc/ssh/phalanx/authorized_keys"
ENVIRONMENTS = "/var/lib/phalanx/environments"
# Files in a home directory that shells and ssh read at their start. All jobs share the home, so root owns them.
_START_FILES = (
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".inputrc", ".pam_environment"),
    *(".zshenv", ".zprofile", ".zshrc", ".zlogin", ".kshrc", ".cshrc", ".tcshrc"),
    *(".rhosts", ".shosts", ".ssh/config", ".ssh/authorized_keys", ".ssh/authorized_keys2", ".ssh/rc"),
)
_START_TEXT = "# Root's, for no job may leave anything here for the next one.\n"
# Red Hat's bash reads /etc/bashrc only from here; Debian's reads its own file by itself.
_BASHRC = "[ ! -r /etc/bashrc ] || . /etc/bashrc\n"


def single_uid(root: str = "") -> bool:
    """Whether the user namespace maps only one uid, as in the local cloud's fallback: every user is uid 0 there."""
    maps = files.read(f"{root}/proc/self/uid_map").split()
    return len(maps) == 3 and maps[2] == "1"


def make_user(name: str, root: str = "") -> int:
    """Create the job user, without password and sudo, with the same uid on all nodes. Return the uid."""
    uid = uid_of(name, root)
    if find(name, root) >= 0:
        return uid
    # Without a systemd of the user's own, to which a job could leave processes that its end does not find.
    units = f"{root}/etc/systemd/system"
    os.makedirs(units, exist_ok=True)
    os.symlink("/dev/null", f"{units}/user@{uid}.service")
    home = f"/home/{name}"
    # Not useradd: it can't give uid 0 a second name, and sshd without PAM refuses the "!" that it writes to shadow.
    _append(f"{root}/etc/group", f"{name}:x:{uid}:")
    _append(f"{root}/etc/shadow", f"{name}:*:20000::::::")
    _append(f"{root}/etc/passwd", f"{name}:x:{uid}:{uid}:phalanx jobs:{home}:/bin/bash")
    _make_home(root + home, uid)
    return uid


def make_environments(uid: int, root: str = "") -> None:
    """Create the directory of the environments of jobs, which jobs fill."""
    os.makedirs(root + ENVIRONMENTS, exist_ok=True)
    files.chown(root + ENVIRONMENTS, uid)
    os.chmod(root + ENVIRONMENTS, 0o700)


def share_key(path: str, name: str, root: str = "") -> None:
    """Let jobs read a private key of ssh that they can't change, or none of a later job could log in to another node.

    It belongs to nobody, because ssh refuses a key of its own user's that others may read: root uses it, too.
    """
    uid = find(name, root)
    files.chown(path, _NO_ACCOUNT if uid else 0, find(name, root, _GROUP))
    os.chmod(path, 0o440 if uid else 0o400)


def uid_of(name: str, root: str = "") -> int:
    """Return the uid that the job user has, or will have."""
    uid = find(name, root)
    return uid if uid >= 0 else 0 if single_uid(root) else UID


def find(name: str, root: str = "", field: int = _USER) -> int:
    """Return the uid of a user in /etc/passwd, or another of its numbers; -1 if there is no such user."""
    for line in files.read(f"{root}/etc/passwd").splitlines():
        fields = line.split(":")
        if fields[0] == name:
            return int(fields[field])
    return -1


def authorize(job_user: str, key: str, root: str = "") -> None:
    """Allow `key` to log in as the job user and as the image's default user."""
    for user in (job_user, *_ADMINS):
        if key and find(user, root) >= 0:
            files.write(f"{root}{AUTHORIZED}/{user}", files.line(key))


def deny_timers(name: str, root: str = "") -> None:
    """Let the job user leave nothing to cron and at, which would run it beside later jobs.

    Without a file, Debian's cron is everybody's; at, and cron on Red Hat (crond), are root's alone already.
    """
    for program in ("cron", "at"):
        path = f"{root}/etc/{program}.deny"
        is_open = program == "cron" and not os.path.exists(root + "/usr/sbin/crond")
        if is_open or os.path.exists(path):
            files.write(path, files.with_block(files.read(path), name + "\n"), is_synced=True)


def _append(path: str, line: str) -> None:
    mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o640
    text = files.read(path)
    files.write(path, text + ("" if text.endswith("\n") or not text else "\n") + line + "\n", mode, is_synced=True)


def _make_home(home: str, uid: int) -> None:
    """Create a home directory with the sticky bit: the job user can't replace root's files in it."""
    for name in _START_FILES:
        files.write(f"{home}/{name}", _START_TEXT + (_BASHRC if name == ".bashrc" else ""))
    for directory in (f"{home}/.ssh", home):
        files.chown(directory, 0, uid)
        os.chmod(directory, 0o1775)
