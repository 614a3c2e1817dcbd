"""How a verb of runner.pyz runs on a node: over ssh, or on the head itself without; and the line to a starter there."""

from __future__ import annotations

import os
import signal
import stat
from typing import TYPE_CHECKING, Callable, NamedTuple

from phalanx.runner import checked
from phalanx.runner.names import RUNNER
from phalanx.runner.system import spawn

if TYPE_CHECKING:
    from typing import Tuple

    from phalanx.node.roster import Node
    from phalanx.runner.process import JobDescription

# BatchMode: never a prompt. ServerAlive: for the time before the first frame; after it, heartbeats are quicker.
SSH = ("ssh", "-x", "-T", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-o", "ControlPath=none")
SSH += ("-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")

# A login takes many times as long as a session over a connection that is there (`python -m benchmarks launch`). One
# that nobody uses ends after this, and one to a node that does not answer by ServerAlive.
_KEPT_S = 600
_KEPT_IN = "/tmp"


def command_on(node: str, is_head: bool, runner: str, *words: str, options: Tuple[str, ...] = ()) -> Tuple[str, ...]:
    """argv that runs a verb of the job's runner.pyz on a node; `options` are ssh's and come before its others."""
    argv = checked.argv(runner, *words)
    # The first value of an option counts.
    return argv if is_head else (SSH[0], *options, *SSH[1:], node, "exec " + " ".join(map(quoted, argv)))


def quoted(word: str) -> str:
    """The word as a POSIX shell takes it literally."""
    return "'" + word.replace("'", "'\\''") + "'"


class Line(NamedTuple):
    """The pipes to a starter and from it, the one with what is said outside the frames, and how to give them up."""

    to_fd: int
    from_fd: int
    error_fd: int
    cut: Callable[[], None]


def spawned(argv: Tuple[str, ...]) -> Line:
    """The line to a starter that this command runs."""
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    pid = spawn(argv, os.environ, (in_read, out_write, err_write))
    for fd in (in_read, out_write, err_write):
        os.close(fd)
    return Line(in_write, out_read, err_read, lambda: os.kill(pid, signal.SIGKILL))


def log_in(job: JobDescription, node: Node) -> Line:
    """The line to a starter over ssh, or on the head itself without."""
    words = ["starter", job.id, job.work, *(["--head"] if node.head else [])]
    kept = "" if node.head else _kept_connection(node.instance_id)
    options = _sharing(kept) if kept else ()
    line = spawned(command_on(node.name, node.head, os.path.join(job.directory, RUNNER), *words, options=options))
    return line._replace(cut=lambda: _cut(line, kept)) if kept else line


def _sharing(path: str) -> Tuple[str, ...]:
    """ssh's options for a connection that all jobs share and the first makes; its process belongs to no job.

    When it ends while a session is asked for (a node that was reset in silence: after 20 s by ServerAlive), ssh goes on
    with a connection of its own.
    """
    return ("-o", f"ControlPath={path}", "-o", "ControlMaster=auto", "-o", f"ControlPersist={_KEPT_S}")


def _kept_connection(instance_id: str) -> str:
    """Where its socket lies; "" where that can't be this user's alone, or no socket be made: ssh would end of that."""
    directory = f"{_KEPT_IN}/phalanx-lines-{os.getuid()}"
    path = f"{directory}/{instance_id}"
    try:
        if not os.path.isdir(directory):
            os.mkdir(directory, 0o700)
        found = os.lstat(directory)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            return ""
        if not os.path.exists(path):
            probe = f"{path}.{os.getpid()}"
            os.mkfifo(probe)
            os.unlink(probe)
    except OSError:
        return ""
    return path


def _cut(line: Line, kept: str) -> None:
    """The node does not answer: nobody else may wait for it over this connection."""
    try:
        os.unlink(kept)
    except OSError:
        pass  # it was given up before
    line.cut()
