"""The HTTP server: one WSGI app on many sockets (this machine's loopback and an address inside each VPC)."""

from __future__ import annotations

import io
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus
from typing import Any, cast

from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.serving import ThreadedWSGIServer

from localcloud.api import admission
from localcloud.api.admission import OTHERS, PEER, USER, VPC, Incoming, Peer, Share
from localcloud.api.app import WsgiApp
from localcloud.iam.calls import BODY_LIMIT_BYTES
from localcloud.network.accounts import Accounts, Address

log = logging.getLogger(__name__)
ACCEPT_PAUSE_S = 0.05
# A job that copies to or from S3 has 64 connections (objects.workers).
_OWN_CONNECTIONS, _MOST_CONNECTIONS, _CONNECTIONS_OF_USER = 4, 128, 256
_OWN_BYTES, _MOST_BYTES, _SHARED_BYTES, _BYTES_OF_USER = 1 << 20, 64 << 20, 256 << 20, 512 << 20
# Lists and forms take up to this many times their bytes in memory once they are parsed.
_PARSED = 32
_ROOM_WITHIN_S = 30.0
# As long as SDKs, and objects.s3_client, take to send a body or to wait for an answer.
_BODY_WITHIN_S = _ANSWER_TAKEN_WITHIN_S = 60.0
# What a client sends beyond is dropped, so that it sees the answer and not a reset.
_DROPPED_BYTES, _DROPPED_WITHIN_S = 1 << 26, 10.0
_LENGTH = "[0-9]{1,18}"
_OF_S3 = re.compile(r"AWS4-HMAC-SHA256 Credential=\w+/\d+/[\w-]+/s3/aws4_request,")
# PutObject and UploadPart, the only calls whose bodies nothing parses.
_QUERY = "(partNumber|uploadId|x-id)=[^&]*"
_OBJECT = re.compile(rf"/[^/?#]+/[^?#]+(\?{_QUERY}(&{_QUERY})*)?")


class _Server(ThreadedWSGIServer):
    daemon_threads = True
    memory: Share


class _Handler(MotoRequestHandler):
    # Headers and body are two writes, so Nagle's algorithm would delay every answer on a kept connection by 40 ms.
    disable_nagle_algorithm = True
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._incoming = Incoming(self.connection)
        self.rfile = self._buffer = io.BufferedReader(self._incoming)

    def run_wsgi(self) -> None:
        """Answer a request once there is memory for its body. Every connection has one request."""
        address: tuple[Any, ...] = self.client_address
        memory, peer = cast(_Server, self.server).memory, address[3]
        self._length = self._body_bytes()
        held = self._length * (1 if self._is_content() else _PARSED)
        if held > memory.most(peer):
            self.wfile.write(admission.answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE))
        elif not memory.take(peer, held, _ROOM_WITHIN_S):
            self.wfile.write(admission.BUSY)
        else:
            try:
                super().run_wsgi()
            finally:
                memory.give_back(peer, held)
        self.close_connection = True

    def make_environ(self) -> dict[str, Any]:
        address: tuple[Any, ...] = self.client_address
        environ = {**super().make_environ(), VPC: address[2], PEER: address[3]}
        # In chunks of any length, it would be read into this machine's memory.
        environ.pop("wsgi.input_terminated", None)
        self._incoming.expect(self._length, _BODY_WITHIN_S)
        body = self.rfile.read(self._length)
        environ["CONTENT_LENGTH"], environ["wsgi.input"] = str(len(body)), io.BytesIO(body)
        # Not through the buffer, which would collect as much as is asked for.
        self.rfile = cast(Any, self._incoming)
        self._incoming.expect(_DROPPED_BYTES, _DROPPED_WITHIN_S)
        self.connection.settimeout(_ANSWER_TAKEN_WITHIN_S)
        return environ

    def _body_bytes(self) -> int:
        """Return how much is read of the body; nothing if its length is none."""
        given = self.headers.get("Content-Length") or "0"
        return min(int(given), BODY_LIMIT_BYTES) if re.fullmatch(_LENGTH, given) else 0

    def _is_content(self) -> bool:
        """Whether the body becomes an object of S3 as it is."""
        signed = _OF_S3.match(self.headers.get("Authorization", ""))
        return bool(signed and self.command == "PUT" and _OBJECT.fullmatch(self.path))

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:  # noqa: ARG002
        log.debug("%s %s", self.requestline, code)

    def log_error(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class HttpServer:
    """Serves `app` on every attached listener, with one thread per connection.

    `accounts` tells the connections of this machine's user to `listener` from those of others.
    """

    def __init__(self, app: WsgiApp, listener: socket.socket, accounts: Accounts | None = None) -> None:
        host, port = listener.getsockname()[:2]
        self._server = _Server(host, port, app, handler=_Handler, fd=listener.fileno())  # pyright: ignore[reportArgumentType]
        self._server.memory = Share(_OWN_BYTES, _MOST_BYTES, _SHARED_BYTES, _BYTES_OF_USER)
        self._connections = admission.connections(_OWN_CONNECTIONS, _MOST_CONNECTIONS, _CONNECTIONS_OF_USER)
        self._listeners: list[socket.socket] = []
        own = listener.getsockname()[:2]
        self._serve(listener, "", lambda client: OTHERS if accounts and not accounts.is_ours(client, own) else USER)

    def attach(self, listener: socket.socket, vpc_id: str) -> None:
        """Serve one more socket, which listens in a VPC, until `detach`; requests tell in which."""
        self._serve(listener, vpc_id, lambda client: (vpc_id, client[0]))

    def attach_for(self, peer: Peer, listener: socket.socket) -> None:
        """Serve one more socket, to which only this peer connects."""
        self._serve(listener, "", lambda _client: peer)

    def _serve(self, listener: socket.socket, vpc_id: str, peer_of: Callable[[Address], Peer]) -> None:
        self._listeners.append(listener)
        name = "http-{}:{}".format(*listener.getsockname()[:2])
        threading.Thread(target=self._accept, args=(listener, vpc_id, peer_of), name=name, daemon=True).start()

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

    def _accept(self, listener: socket.socket, vpc_id: str, peer_of: Callable[[Address], Peer]) -> None:
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
            self._admit(connection, (*address[:2], vpc_id, peer_of(address[:2])))

    def _admit(self, connection: socket.socket, address: tuple[Any, ...]) -> None:
        serve = partial(self._server.process_request_thread, connection, address)
        admission.admit(self._connections, address[3], serve, partial(admission.turn_away, connection))


def close(listener: socket.socket) -> None:
    """Close a listening socket and wake the thread that waits in accept()."""
    try:
        listener.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    listener.close()
