"""The answering half of dial.py: a unix socket where a host process asks for a connection to a node."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

# (host as the user wrote it) → (VPC, address); LookupError with words for the user
Locate = Callable[[str], tuple[str, str]]
# (VPC, address, port, timeout_s) → a connected socket; OSError
Connect = Callable[[str, str, int, float], socket.socket]

_CONNECT_TIMEOUT_S = 10.0
_REQUEST_TIMEOUT_S = 5.0
_BACKLOG = 512
_ACCEPT_PAUSE_S = 0.05


class Dialer:
    """Serves at `path` (0600) until `close`. A pathname socket is reachable across network namespaces."""

    def __init__(self, path: Path, locate: Locate, connect: Connect) -> None:
        self._path = path
        self._locate = locate
        self._connect = connect
        self._listener = _bind(path)
        self._closed = False
        threading.Thread(target=self._accept, name="dialer", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        # a thread that waits in accept() is not woken by close()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            try:
                asking, _address = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                # no descriptor left, or a client that gave up: that must not make us deaf
                time.sleep(_ACCEPT_PAUSE_S)
                continue
            threading.Thread(target=self._serve, args=(asking,), name="dial", daemon=True).start()

    def _serve(self, asking: socket.socket) -> None:
        with asking:
            asking.settimeout(_REQUEST_TIMEOUT_S)
            try:
                self._pass(asking, asking.recv(4096).decode())
            except (OSError, LookupError, ValueError) as problem:
                _refuse(asking, str(problem.args[0] if isinstance(problem, LookupError) else problem))

    def _pass(self, asking: socket.socket, request: str) -> None:
        host, _, port = request.strip().rpartition(" ")
        vpc_id, address = self._locate(host)
        with self._connect(vpc_id, address, int(port), _CONNECT_TIMEOUT_S) as connection:
            socket.send_fds(asking, [b"\0"], [connection.fileno()])


def _refuse(asking: socket.socket, words: str) -> None:
    try:
        asking.sendall(words.encode() or b"?")
    except OSError:
        return  # who asked has gone


def _bind(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # a socket's address holds 107 bytes; state directories may be deeper
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
    path.chmod(0o600)
    listener.listen(_BACKLOG)
    return listener
