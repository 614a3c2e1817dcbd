"""What mpiexec calls instead of ssh: the runner starts the engine's daemon on a node, and this ends with its exit code.

`python3 -IS rsh_agent.py [options] NODE COMMAND…`, a file of its own beside runner.pyz; a shell there runs COMMAND.
"""

from __future__ import annotations

# The C half of `socket`, for the reason that keeper.py gives.
import _socket
import os
import sys


def main() -> None:
    """Send the request, then become a waiting shell, which is smaller: one per node lives as long as the job."""
    args = sys.argv[1:]
    while args and args[0].startswith("-"):
        args.pop(0)
    answer_read, answer_write = os.pipe()
    runner = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    runner.connect("\0" + os.environ["PHALANX_RUNNER"])
    request = b"\0".join(map(os.fsencode, (args[0], " ".join(args[1:]))))
    fds = answer_write.to_bytes(4, sys.byteorder)
    runner.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
    os.close(answer_write)
    os.dup2(answer_read, 0)
    os.execv("/bin/sh", ["sh", "-c", "read code; exit ${code:-255}"])


if __name__ == "__main__":
    main()
