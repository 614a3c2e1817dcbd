"""The server for dial.py: a Unix socket through which processes on this machine get connections to nodes."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

# (host as the user wrote it) → (VPC, address); raises LookupError with a message for the user
Locate = Callable[[str], tuple[str, str]]
# (VPC, address, port, timeout_s) → a connected socket; raises OSError
Connect = Callable[[str, str, int, float], socket.socket]
# (instance, port, timeout_s) → a socket connected inside it; raises LookupError with a message for the user, or OSError
OpenSession = Callable[[str, int, float], socket.socket]

SESSION = "ssm/"
"""What begins a host to which the connection is a session of Session Manager."""

_CONNECT_TIMEOUT_S = 10.0
_REQUEST_TIMEOUT_S = 5.0
_BACKLOG = 512
_ACCEPT_PAUSE_S = 0.05


class Dialer:
    """Serves at `path` (mode 0600) until `close`. A socket with a path is reachable across network namespaces."""

    def __init__(self, path: Path, locate: Locate, connect: Connect, open_session: OpenSession | None = None) -> None:
        self._path = path
        self._open_session = open_session
        self._locate = locate
        self._connect = connect
        self._listener = _bind(path)
        self._closed = False
        threading.Thread(target=self._accept, name="dialer", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        # close() alone does not wake a thread that waits in accept().
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            try:
                client, _address = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                # Out of descriptors, or the client gave up: keep serving.
                time.sleep(_ACCEPT_PAUSE_S)
                continue
            threading.Thread(target=self._serve, args=(client,), name="dial", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            client.settimeout(_REQUEST_TIMEOUT_S)
            try:
                self._pass(client, client.recv(4096).decode())
            except (OSError, LookupError, ValueError) as problem:
                _refuse(client, str(problem.args[0] if isinstance(problem, LookupError) else problem))

    def _pass(self, client: socket.socket, request: str) -> None:
        host, _, port = request.strip().rpartition(" ")
        if not int(port):
            self._locate(host)
            client.sendall(b"known")
            return
        with self._to(host, int(port)) as connection:
            socket.send_fds(client, [b"\0"], [connection.fileno()])

    def _to(self, host: str, port: int) -> socket.socket:
        if self._open_session and host.startswith(SESSION):
            return self._open_session(host.removeprefix(SESSION), port, _CONNECT_TIMEOUT_S)
        vpc_id, address = self._locate(host)
        return self._connect(vpc_id, address, port, _CONNECT_TIMEOUT_S)


def _refuse(client: socket.socket, reason: str) -> None:
    try:
        client.sendall(reason.encode() or b"?")
    except OSError:
        return  # the client has gone


def _bind(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # A Unix socket's address holds 107 bytes; the state directory's path may be longer.
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
    path.chmod(0o600)
    listener.listen(_BACKLOG)
    return listener
