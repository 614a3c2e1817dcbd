"""The gateway process, outside the VPCs: accepts connections from their sockets and relays them to the Internet.

Inside a VPC every address outside of it is local to the router ("AnyIP": a local default route), so the router accepts
a connection to any host. The connection's local address is the host that the node wanted to reach.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import struct
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from localcloud.api import admission
from localcloud.network.nat import routes
from localcloud.network.nat.names import Names
from localcloud.nodes import kernel, wire

log = logging.getLogger(__name__)
_READ_BYTES = 1 << 16
_QUERY_BYTES = 4096
# uv has 50 downloads at once.
_OWN, _MOST_QUERIES, _MOST_CONNECTIONS = 8, 64, 256


def start() -> tuple[socket.socket, int]:
    """Fork the gateway; return the channel for listeners (see `wire`) and its pid. The caller must have no threads."""
    ours, theirs = wire.pair()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            kernel.die_with_parent()
            ours.close()
            Gateway(theirs).run()
            status = 0
        finally:
            os._exit(status)
    theirs.close()
    return ours, pid


class Gateway:
    """Serves VPCs' sockets: {"vpc", "kind": "tcp" | "udp"} brings one, {"vpc", "kind": "close"} closes a VPC's.

    {"vpc", "kind": "names", "address", "names"} brings the addresses of file systems by name, for one node, and
    {"vpc", "kind": "dns", "dns"} what the VPC's name server answers (records.Dns).
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._names = Names()
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._sockets: dict[int, tuple[str, socket.socket]] = {}
        self._queries = admission.connections(_OWN, _MOST_QUERIES)
        self._connections = admission.connections(_OWN, _MOST_CONNECTIONS)

    def run(self) -> None:
        """Serve until the other end of the channel is closed."""
        while True:
            for fd, _events in self._poll.poll():
                if fd == self._channel.fileno():
                    if not self._receive():
                        return
                elif fd in self._sockets:
                    self._serve(*self._sockets[fd])

    def _receive(self) -> bool:
        received = wire.receive(self._channel)
        if received is None:
            return False
        message, fds = received
        if message["kind"] == "close":
            self._close(message["vpc"])
        elif message["kind"] == "names":
            self._names.tell((message["vpc"], message["address"]), message["names"])
        elif message["kind"] == "dns":
            self._names.learn(message["vpc"], message["dns"])
        for fd in fds:
            self._sockets[fd] = message["vpc"], socket.socket(fileno=fd)
            self._poll.register(fd, select.POLLIN)
        return True

    def _close(self, vpc: str) -> None:
        self._names.forget(vpc)
        for fd, (owner, listener) in list(self._sockets.items()):
            if owner == vpc:
                self._poll.unregister(fd)
                del self._sockets[fd]
                listener.close()

    def _serve(self, vpc: str, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if listener.type == socket.SOCK_DGRAM:
                query, (address, port) = listener.recvfrom(_QUERY_BYTES)
                answer = partial(_quietly, self._answer, listener, query, vpc, (address, port))
                # One that is dropped is sent again.
                admission.admit(self._queries, (vpc, address), answer, lambda: None)
            else:
                connection, (address, _) = listener.accept()
                relay = partial(_quietly, self._relay, connection)
                admission.admit(self._connections, (vpc, address), relay, partial(_reset, connection))

    def _answer(self, listener: socket.socket, query: bytes, vpc: str, sender: tuple[str, int]) -> None:
        answer = self._names.answer(query, (vpc, sender[0]))
        if answer:
            listener.sendto(answer, sender)

    def _relay(self, node: socket.socket) -> None:
        address, port = node.getsockname()[:2]
        try:
            outside = routes.connect(self._names.target_of(address), port)
        except OSError as problem:
            log.info("no connection to port %d of %s: %s", port, self._names.target_of(address), problem)
            _reset(node)
            return
        with outside, node:
            for end in (outside, node):
                end.settimeout(None)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            _spawn(_copy, node, outside)
            _copy(outside, node)
            # Or that thread would wait for a node that neither sends nor ends.
            node.shutdown(socket.SHUT_RDWR)


def _spawn(call: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=_quietly, args=(call, *arguments), daemon=True).start()


def _quietly(call: Callable[..., None], *arguments: Any) -> None:
    with contextlib.suppress(OSError):  # either end may disconnect at any moment
        call(*arguments)


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source ends, and then end the target's input."""
    try:
        while data := source.recv(_READ_BYTES):
            target.sendall(data)
    finally:
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def _reset(connection: socket.socket) -> None:
    """Reset the connection, so that the node's program fails at once."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
