"""Has the node's agent serve a job in namespaces of its own: one /dev/shm and one IPC namespace for all its ranks here.

The process that sshd, the runner or a scheduler has started only waits. When it is killed, the job's part here ends.
"""

from __future__ import annotations

# The C half of `socket`, which takes milliseconds less.
import _socket
import fcntl
import json
import os
import signal
import sys

from phalanx.runner import checked

# These three are the same as in the agent's node.shared_memory.
SOCKET = "/run/phalanx-memory.sock"
READY, GO = b"ready", b"go"
# For the process that the agent starts, and where it has the other end of what the waiting one keeps.
OPTION, _LIFE = "--inside", 3
# The agent takes milliseconds.
_PATIENCE_S = 5.0


def is_served(*arguments: str) -> bool:
    """Run the verb `starter` with these arguments inside, and wait for its end; False if the agent can't do that."""
    life, others = _socket.socketpair()
    request = {"argv": checked.argv(sys.argv[0], "starter", *arguments, OPTION), "env": dict(os.environ)}
    begun = _begin(json.dumps({**request, "cwd": os.getcwd()}).encode(), (0, 1, 2, others.fileno()))
    others.close()
    if begun:
        life.recv(1)
    life.close()
    return begun


def _begin(request: bytes, fds: tuple) -> bool:
    agent = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    agent.settimeout(_PATIENCE_S)
    try:
        agent.connect(SOCKET)
        rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
        agent.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        if agent.recv(len(READY)) != READY:
            return False
        # What does not hear this ends.
        agent.send(GO)
        return True
    except OSError:
        return False
    finally:
        agent.close()


def keep_from_ranks() -> None:
    """Let no program that this process starts get its end of the line: one byte written there would end the job."""
    os.set_inheritable(_LIFE, False)


def end_with_the_waiting_one() -> None:
    """Let this process, inside, get SIGTERM when the process that waits for it ends."""
    fcntl.fcntl(_LIFE, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(_LIFE, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(_LIFE, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    try:
        if not os.read(_LIFE, 1):
            os.kill(os.getpid(), signal.SIGTERM)  # it has ended already
    except BlockingIOError:
        pass
