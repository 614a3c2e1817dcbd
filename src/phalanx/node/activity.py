"""Whether somebody uses this node: programs of its users, or a person who types at a terminal."""

from __future__ import annotations

import os
import time

from phalanx.node.proc_files import read_each

# Accounts of people and of jobs; the image's services have smaller numbers, and `nobody` has a greater one.
_FIRST_USER, _NOBODY = 1000, 65534
_SHELLS = (b"bash", b"sh", b"dash", b"zsh", b"fish", b"csh", b"tcsh")
# What a login, or the last ssh connection of a job, leaves behind without working.
_AT_REST = (b"sshd", b"sshd-session", b"systemd", b"(sd-pam)", b"dbus-daemon", b"tmux", b"screen", b"ssh-agent")
_MULTIPLEXED = b"[mux]"


def last_use(proc: str = "/proc", terminals: str = "/dev/pts") -> float:
    """Return when this node was used last, in seconds since the epoch: now, if a user's program runs or hangs."""
    users = [int(pid) for pid in os.listdir(proc) if pid.isdigit() and _is_user_s(f"{proc}/{pid}")]
    lines, hanging = read_each(users, "cmdline", proc)
    if hanging or not all(at_rest(line.rstrip(b"\0").split(b"\0")) for line in lines.values()):
        return time.time()
    return last_input(terminals)


def last_input(terminals: str = "/dev/pts") -> float:
    """Return when a terminal was read last, as `w` shows it: a shell reads what a person types. 0 without any."""
    return max((os.stat(path).st_atime for path in _terminals(terminals)), default=0.0)


def show(text: str, terminals: str = "/dev/pts") -> None:
    """Write a line to every terminal. (`wall` needs utmp, which not every system keeps.)"""
    for path in _terminals(terminals):
        try:
            # A terminal that was stopped would block for ever.
            terminal = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            os.write(terminal, f"\r\n\aphalanx: {text}\r\n".encode())
            os.close(terminal)
        except OSError:
            pass  # it was closed meanwhile, or is full


def at_rest(argv: list[bytes]) -> bool:
    """Whether a user's process does nothing by itself: the parts of a login, and shells that wait for input."""
    name = os.path.basename(argv[0].split(b" ")[0]).strip(b"-:").lower()
    if name in _SHELLS:
        return all(word[:1] == b"-" and b"c" not in word for word in argv[1:])
    return not name or name in _AT_REST or argv[0].endswith(_MULTIPLEXED)


def _is_user_s(process: str) -> bool:
    try:
        owner = os.stat(process).st_uid
    except OSError:
        return False  # it has ended
    return owner >= _FIRST_USER and owner != _NOBODY


def _terminals(directory: str) -> list[str]:
    try:
        return [f"{directory}/{name}" for name in os.listdir(directory) if name.isdigit()]
    except OSError:
        return []
