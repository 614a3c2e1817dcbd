"""ssh's ProxyCommand (with ProxyUseFdpass): request a connection to a node from the local cloud and pass it to ssh.

    python -IS dial.py [--errors FILE] DIR/dial.sock HOST PORT

Without PORT it only reports, by its exit status, whether HOST is a running instance: for `Match exec` of ssh_config.
A reason is written to stderr, and to FILE: ssh with ControlPersist gives it no stderr. "" stands for no file.
It runs before every ssh, so it imports C modules only.
"""

from __future__ import annotations

import _socket
import posix
import sys

_FD_BYTES = 4
_TIMEOUT_S = 30.0
_LOOK = "0"


def main() -> int:
    words, errors = sys.argv[1:], ""
    if words[:1] == ["--errors"]:
        errors, words = "".join(words[1:2]), words[2:]
    if len(words) not in (2, 3):
        return _report("usage: dial.py [--errors FILE] SOCKET HOST [PORT]", errors)
    path, host, port = [*words, _LOOK][:3]
    if port == _LOOK:
        return int(not _is_known(path, host))
    try:
        fd, reason = _ask(path, f"{host} {port}\n")
    except OSError as problem:
        return _report(f"the local cloud does not answer at {path}: {problem.strerror or problem}", errors)
    if fd is None:
        return _report(reason, errors)
    ssh = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, 1)
    ssh.sendmsg([b"\0"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fd)])
    return 0


def _is_known(path: str, host: str) -> bool:
    try:
        return _ask(path, f"{host} {_LOOK}\n") == (None, "known")
    except OSError:
        return False


def _ask(path: str, request: str) -> tuple[bytes | None, str]:
    """Return the descriptor as received, or None and the reason."""
    # A Unix socket's address holds 107 bytes; the state directory's path may be longer.
    directory, _, name = path.rpartition("/")
    if directory:
        posix.chdir(directory)
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    channel.settimeout(_TIMEOUT_S)
    channel.connect(name)
    channel.send(request.encode())
    data, extra, _flags, _address = channel.recvmsg(4096, _socket.CMSG_SPACE(_FD_BYTES))
    for level, kind, fd in extra:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
            return fd[:_FD_BYTES], ""
    return None, data.decode() or "the local cloud closed the connection"


def _report(text: str, errors: str) -> int:
    message = f"localcloud: {text}\n"
    sys.stderr.write(message)
    if errors:
        fd = posix.open(errors, posix.O_WRONLY | posix.O_APPEND)
        posix.write(fd, message.encode())
        posix.close(fd)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
