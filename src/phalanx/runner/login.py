"""Runs a verb of runner.pyz on a node, over ssh or directly on the head, and opens the line to a starter there."""

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
    from phalanx.runner.process import PreparedJob

# ServerAlive covers the time before the first frame; after it, heartbeats are quicker.
SSH = ("ssh", "-x", "-T", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-o", "ControlPath=none")
SSH += ("-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")

# A login takes many times as long as a session over an existing connection (`python -m benchmarks launch`). An unused
# connection ends after this, and one to a node that does not answer ends by ServerAlive.
_KEPT_S = 600
_KEPT_IN = "/tmp"


def command_on(node: str, is_head: bool, runner: str, *args: str, options: Tuple[str, ...] = ()) -> Tuple[str, ...]:
    """Return argv that runs a verb of the job's runner.pyz on a node; `options` go to ssh, before SSH's own."""
    argv = checked.argv(runner, *args)
    # ssh takes the first value of an option.
    return argv if is_head else (SSH[0], *options, *SSH[1:], node, "exec " + " ".join(map(quoted, argv)))


def quoted(word: str) -> str:
    """Return the word quoted for a POSIX shell."""
    return "'" + word.replace("'", "'\\''") + "'"


class Line(NamedTuple):
    """The pipes to and from a starter, the pipe of messages outside the frames, and a function that cuts the line."""

    to_fd: int
    from_fd: int
    error_fd: int
    cut: Callable[[], None]


def spawned(argv: Tuple[str, ...]) -> Line:
    """Start this command, and return the line to the starter that it runs."""
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    pid = spawn(argv, os.environ, (in_read, out_write, err_write))
    for fd in (in_read, out_write, err_write):
        os.close(fd)
    return Line(in_write, out_read, err_read, lambda: os.kill(pid, signal.SIGKILL))


def log_in(job: PreparedJob, node: Node) -> Line:
    """Start a starter over ssh, or directly on the head, and return the line to it."""
    args = ["starter", job.id, job.work, *(["--head"] if node.head else [])]
    kept = "" if node.head else _kept_connection(node.instance_id)
    options = _sharing(kept) if kept else ()
    line = spawned(command_on(node.name, node.head, os.path.join(job.directory, RUNNER), *args, options=options))
    return line._replace(cut=lambda: _cut(line, kept)) if kept else line


def _sharing(path: str) -> Tuple[str, ...]:
    """Return ssh's options for a connection that all jobs share and the first makes; its process belongs to no job.

    When it ends while a session is being opened (ServerAlive ends it after 20 s if the node was reset), ssh continues
    with a connection of its own.
    """
    return ("-o", f"ControlPath={path}", "-o", "ControlMaster=auto", "-o", f"ControlPersist={_KEPT_S}")


def _kept_connection(instance_id: str) -> str:
    """Return the path of the shared connection's socket; "" where ssh would fail to use it.

    That is where the directory is not private to this user, or can't have sockets.
    """
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
    """Cut the line to a node that does not answer, and keep others from waiting on the shared connection."""
    try:
        os.unlink(kept)
    except OSError:
        pass  # another line was cut before
    line.cut()
