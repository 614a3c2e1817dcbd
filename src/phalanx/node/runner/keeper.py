"""Stands between an engine and one rank: gives the rank pipes to the node's starter, and tells that one how it ended.

The engine sees an ordinary child: signals are passed on, and the keeper ends as the rank ended.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
from typing import TYPE_CHECKING

from phalanx.node.runner.system import STARTER_SOCKET, become

if TYPE_CHECKING:
    from typing import NoReturn, Sequence

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def keep(rank_variables: str, command: Sequence[str]) -> NoReturn:
    """Run the command as the rank that one of these (comma-separated) variables names."""
    starter = _connect()
    label = _label(rank_variables)
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    pid = _start(command, out_write, err_write)
    socket.send_fds(starter, [json.dumps({"label": label, "pid": pid}).encode()], [out_read, err_read])
    for fd in (out_read, out_write, err_read, err_write):
        os.close(fd)
    code = _wait(pid)
    try:
        starter.send(json.dumps({"code": code}).encode())
    except OSError:
        pass  # the starter is gone: the job is over
    _end_alike(code)


def _connect() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect("\0" + os.environ[STARTER_SOCKET])
    except (KeyError, OSError) as error:
        sys.exit(f"phalanx: no starter of this job answers here ({error!r}); the engine must pass on {STARTER_SOCKET}")
    return connection


def _label(rank_variables: str) -> str:
    for name in rank_variables.split(","):
        if name in os.environ:
            return os.environ[name]
    sys.exit(f"phalanx: the engine set none of {rank_variables}")


def _start(command: Sequence[str], out_fd: int, err_fd: int) -> int:
    null = os.open(os.devnull, os.O_RDONLY)
    pid = os.fork()
    if pid == 0:
        # A group of its own: an engine that signals the keeper's group reaches the rank once, through the keeper.
        os.setpgid(0, 0)
        become(command, os.environ, (null, out_fd, err_fd))
    return pid


def _wait(pid: int) -> int:
    for number in _PASSED_ON:
        signal.signal(number, lambda got, _: os.kill(pid, got))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _end_alike(code: int) -> NoReturn:
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank's own core is enough
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)
