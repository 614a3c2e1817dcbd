"""ssh's ProxyCommand (with ProxyUseFdpass): asks the local cloud for a connection to a node and hands it to ssh.

    python -IS dial.py DIR/dial.sock HOST PORT

It runs before every ssh, so it loads nothing but C modules, and nothing of phalanx.
"""

from __future__ import annotations

import _socket
import posix
import sys

_FD_BYTES = 4
_TIMEOUT_S = 30.0


def main() -> int:
    if len(sys.argv) != 4:
        return _complain("usage: dial.py SOCKET HOST PORT")
    path, host, port = sys.argv[1:]
    try:
        fd, words = _ask(path, f"{host} {port}\n")
    except OSError as problem:
        return _complain(f"the local cloud does not answer at {path}: {problem.strerror or problem}")
    if fd is None:
        return _complain(words)
    ssh = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, 1)
    ssh.sendmsg([b"\0"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fd)])
    return 0


def _ask(path: str, request: str) -> tuple[bytes | None, str]:
    """The descriptor as it came, or None and the reason."""
    # a socket's address holds 107 bytes; state directories may be deeper
    directory, _, name = path.rpartition("/")
    if directory:
        posix.chdir(directory)
    asking = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    asking.settimeout(_TIMEOUT_S)
    asking.connect(name)
    asking.send(request.encode())
    data, extra, _flags, _address = asking.recvmsg(4096, _socket.CMSG_SPACE(_FD_BYTES))
    for level, kind, fd in extra:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
            return fd[:_FD_BYTES], ""
    return None, data.decode() or "the local cloud hung up"


def _complain(text: str) -> int:
    """For ssh's user, and for whoever has said where to: ssh gives us no stderr when it keeps the connection."""
    told = f"phalanx: {text}\n"
    sys.stderr.write(told)
    place = posix.environ.get(b"PHALANX_PROXY_SAYS")
    if place:
        fd = posix.open(place, posix.O_WRONLY | posix.O_APPEND)
        posix.write(fd, told.encode())
        posix.close(fd)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
