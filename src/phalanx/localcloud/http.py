"""The HTTP server: one WSGI app on many sockets (this machine's loopback and an address inside each VPC)."""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from _thread import start_new_thread
from collections.abc import Iterable
from typing import Any

from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.serving import ThreadedWSGIServer

from phalanx.localcloud.api import WsgiApp

log = logging.getLogger(__name__)
IDLE_TIMEOUT_S = 75
ACCEPT_PAUSE_S = 0.05
_LENGTH = "[0-9]{1,18}"
VPC = "localcloud.vpc"
"""The key of a request's VPC in its WSGI environment, "" for one from this machine."""


class _Handler(MotoRequestHandler):
    # Headers and body are two writes, so Nagle's algorithm would delay every answer on a kept connection by 40 ms.
    disable_nagle_algorithm = True
    protocol_version = "HTTP/1.1"
    timeout = IDLE_TIMEOUT_S

    def make_environ(self) -> dict[str, Any]:
        address: tuple[Any, ...] = self.client_address
        environ = {**super().make_environ(), VPC: address[2]}
        if not re.fullmatch(_LENGTH, environ.get("CONTENT_LENGTH") or "0"):
            # As a number below 0 it would be read to its end, into this machine's memory.
            environ["CONTENT_LENGTH"] = "0"
        return environ

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:  # noqa: ARG002
        log.debug("%s %s", self.requestline, code)

    def log_error(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class HttpServer:
    """Serves `app` on every attached listener, with one thread per connection."""

    def __init__(self, app: WsgiApp, listener: socket.socket) -> None:
        host, port = listener.getsockname()[:2]
        self._server = ThreadedWSGIServer(host, port, app, handler=_Handler, fd=listener.fileno())  # pyright: ignore[reportArgumentType]
        self._server.daemon_threads = True
        self._listeners: list[socket.socket] = []
        self.attach(listener)

    def attach(self, listener: socket.socket, vpc_id: str = "") -> None:
        """Serve one more listening socket until `detach`; requests tell in which VPC it listens, if it does."""
        self._listeners.append(listener)
        name = "http-{}:{}".format(*listener.getsockname()[:2])
        threading.Thread(target=self._accept, args=(listener, vpc_id), name=name, daemon=True).start()

    def detach(self, listeners: Iterable[socket.socket]) -> None:
        """Stop accepting on these sockets and close them."""
        for listener in listeners:
            if listener in self._listeners:
                self._listeners.remove(listener)
            close(listener)

    def close(self) -> None:
        """Stop accepting on all sockets."""
        self.detach(list(self._listeners))
        self._server.server_close()

    def _accept(self, listener: socket.socket, vpc_id: str) -> None:
        while True:
            try:
                connection, address = listener.accept()
            except OSError as problem:
                if listener not in self._listeners:
                    return
                # Out of descriptors, or the client gave up: keep serving.
                log.warning("accept: %s", problem)
                time.sleep(ACCEPT_PAUSE_S)
                continue
            # Thread.start() would wait until the thread runs, while hundreds of nodes want to connect.
            start_new_thread(self._server.process_request_thread, (connection, (*address[:2], vpc_id)))


def close(listener: socket.socket) -> None:
    """Close a listening socket and wake the thread that waits in accept()."""
    try:
        listener.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    listener.close()
