"""The calls to the kernel that starter, guard and runner share: start a process, name it, inspect it."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import socket
import struct

from phalanx.node import proc_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Mapping, NoReturn, Optional, Sequence, Tuple

# A variable in every process of a job; its value is the job's id.
MARK = "PHALANX_JOB"
# Where a keeper finds its node's starter, and an engine's agent the head's runner: names of abstract unix sockets.
STARTER_SOCKET = "PHALANX_STARTER"
RUNNER_SOCKET = "PHALANX_RUNNER"
# The path of the job's virtual environment on the shared directory, if it has one.
ENVIRONMENT = "PHALANX_ENVIRONMENT"

# What an error says of a disk that is full.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

COMMAND_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def roster_path() -> str:
    """Return the path of the present roster. Tests, which run on no node, set another one."""
    return os.environ.get("PHALANX_ROSTER", "/opt/phalanx/roster.json")


def activated(env: Mapping[str, str]) -> Dict[str, str]:
    """Return these variables with the job's environment, if there is one, first in PATH."""
    place = env.get(ENVIRONMENT)
    if not place:
        return dict(env)
    path = os.path.join(place, "bin") + os.pathsep + env.get("PATH", os.defpath)
    # It may have no pip of its own: with PIP_PYTHON the image's pip installs into it, not into the image.
    return {**env, "PATH": path, "VIRTUAL_ENV": place, "PIP_PYTHON": os.path.join(place, "bin", "python")}


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    streams: Tuple[int, int, int],
    directory: Optional[str] = None,
    die_with_parent: bool = False,
) -> int:
    """Start argv in a session of its own with these stdin, stdout and stderr; return its pid.

    For a command that can't be started, the child prints the reason on its stderr and ends with 127 or 126, as in a
    shell.
    """
    # A signal before exec must neither run the parent's handler in the child nor get lost.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    else:
        try:
            os.setsid()
            for number in _ENDING:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if die_with_parent:
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                let_trace(os.getppid())
            if directory:
                os.chdir(directory)
            become(argv, env, streams)
        except BaseException as error:
            os.write(2, f"phalanx: {argv[0]}: {error}\n".encode())
            os._exit(_NOT_EXECUTABLE)
    return pid


def become(argv: Sequence[str], env: Mapping[str, str], streams: Tuple[int, int, int]) -> NoReturn:
    """Replace this (just forked) process by argv; never returns."""
    # Two steps, so that no stream is overwritten before it is copied.
    copies = [os.dup(fd) for fd in streams]
    for target, copy in enumerate(copies):
        os.dup2(copy, target, inheritable=True)
    # Python ignores these two signals; its children must not inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], list(argv), dict(env))
    except FileNotFoundError as error:
        os.write(2, f"phalanx: {argv[0]}: {error.strerror}\n".encode())
        os._exit(COMMAND_NOT_FOUND)
    except OSError as error:
        os.write(2, f"phalanx: {argv[0]}: {error.strerror}\n".encode())
        os._exit(_NOT_EXECUTABLE)


def forget_other_jobs() -> None:
    """Remove another job's variables, if this process was started in one: its children are no part of that job."""
    for name in (MARK, STARTER_SOCKET, RUNNER_SOCKET):
        os.environ.pop(name, None)


def raise_file_limit() -> None:
    """Raise the limit of open files to its maximum: a line to a node takes three files and a rank one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def adopt_orphans() -> None:
    """Make this process the new parent of every descendant whose own parent ends."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def prctl(option: int, value: int) -> None:
    """Call prctl(2). Raises OSError."""
    if ctypes.CDLL(None).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(f"prctl({option}, {value}) failed")


def let_trace(pid: int) -> None:
    """Let this process and its descendants read the stack of the present one, where Yama forbids that to all others.

    Yama (ptrace_scope 1) keeps the grant when this process executes a program. Other kernels do not know the request.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, pid, 0, 0, 0)


def reap() -> List[Tuple[int, int]]:
    """Return (pid, exit code or minus the signal) of every child that has ended; never waits."""
    ended = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


def signal_name(number: int) -> str:
    """Return a signal's name for messages; real-time signals have no names of their own."""
    known = {one.value for one in signal.Signals}
    return signal.Signals(number).name if number in known else f"signal {number}"


def process_stat(pid: int) -> Optional[Dict[str, str]]:
    """Return what process_stats knows of a process; None if there is none."""
    return process_stats([pid]).get(pid)


def process_stats(pids: Iterable[int]) -> Dict[int, Dict[str, str]]:
    """Return parent, state, start, name and CPU time (in ticks) of each process; of one that hangs, start is "".

    "ticks" is its own CPU time, and "reaped" that of its children that have ended; "pages" is its memory.
    """
    read, hanging = proc_files.read_each(pids, "stat")
    known = {pid: _stat(text.decode(errors="replace")) for pid, text in read.items()}
    statuses = {pid: proc_files.read(pid, "status") for pid in hanging}
    return {**known, **{pid: _status(text.decode(errors="replace")) for pid, text in statuses.items() if text}}


def _stat(text: str) -> Dict[str, str]:
    # The name is in parentheses and may contain anything, parentheses included.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return {
        "name": head.partition("(")[2],
        "state": fields[0],
        "parent": fields[1],
        "start": fields[19],
        "ticks": str(int(fields[11]) + int(fields[12])),
        "reaped": str(int(fields[13]) + int(fields[14])),
        "pages": fields[21],
    }


def _status(text: str) -> Dict[str, str]:
    fields = {name: value for name, _, value in (line.partition(":\t") for line in text.splitlines())}
    return {"name": fields["Name"], "state": fields["State"][0], "parent": fields["PPid"], "start": ""}


def descends(pid: int, root: int) -> bool:
    """Return whether a process lives and is a descendant of `root`, without waiting for one that hangs."""
    line = [pid]
    while line[-1] not in (*line[:-1], root):
        text = proc_files.read(line[-1], "status")
        line.append(int(_status(text.decode(errors="replace"))["parent"]) if text else line[-1])
    return line[-1] == root != pid


def boot_id() -> str:
    """Return the identity of this machine's present boot.

    Init's start time is part of it, because containers and nodes of the local cloud boot without their kernel.
    """
    first = process_stat(1)
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {first['start'] if first else ''}"


def peer_is_us(connection: object) -> bool:
    """Return whether the peer of a unix socket runs as this user. Abstract names have no file permissions."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # type: ignore[attr-defined]
    return struct.unpack("3i", raw)[1] == os.getuid()
