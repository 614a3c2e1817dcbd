"""The process that stands outside: it takes what VPCs' sockets accept, and connects from this machine's own network.

Inside a VPC every address that is not of the VPC is the router's own ("AnyIP": a local default route), so a connection
to any host is accepted there; where it wanted to go is its own local address.
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
from typing import Any

from phalanx.localcloud import kernel
from phalanx.localcloud.nat import routes
from phalanx.localcloud.nat.names import Names
from phalanx.localcloud.nodes import wire

log = logging.getLogger(__name__)
_READ_BYTES = 1 << 16
_QUERY_BYTES = 4096


def start() -> tuple[socket.socket, int]:
    """Fork it; returns the channel that `wire` carries listeners over, and its pid. The caller must have no threads."""
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
    """Serves sockets of VPCs, {"vpc", "kind": "tcp" | "udp"} with the descriptor, until {"vpc", "kind": "close"}."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._names = Names()
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._sockets: dict[int, tuple[str, socket.socket]] = {}

    def run(self) -> None:
        """Returns when the other end of the channel is gone."""
        while True:
            for fd, _events in self._poll.poll():
                if fd == self._channel.fileno():
                    if not self._hear():
                        return
                elif fd in self._sockets:
                    self._serve(self._sockets[fd][1])

    def _hear(self) -> bool:
        received = wire.receive(self._channel)
        if received is None:
            return False
        message, fds = received
        if message["kind"] == "close":
            self._close(message["vpc"])
        for fd in fds:
            self._sockets[fd] = message["vpc"], socket.socket(fileno=fd)
            self._poll.register(fd, select.POLLIN)
        return True

    def _close(self, vpc: str) -> None:
        for fd, (owner, listener) in list(self._sockets.items()):
            if owner == vpc:
                self._poll.unregister(fd)
                del self._sockets[fd]
                listener.close()

    def _serve(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if listener.type == socket.SOCK_DGRAM:
                query, sender = listener.recvfrom(_QUERY_BYTES)
                _spawn(self._answer, listener, query, sender)
            else:
                connection, _ = listener.accept()
                _spawn(self._relay, connection)

    def _answer(self, listener: socket.socket, query: bytes, sender: tuple[str, int]) -> None:
        answer = self._names.answer(query)
        if answer:
            listener.sendto(answer, sender)

    def _relay(self, node: socket.socket) -> None:
        address, port = node.getsockname()[:2]
        try:
            outside = routes.connect(self._names.meant_by(address), port)
        except OSError as problem:
            log.info("no connection to port %d of %s: %s", port, self._names.meant_by(address), problem)
            _reset(node)
            return
        with outside, node:
            for end in (outside, node):
                end.settimeout(None)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            _spawn(_copy, node, outside)
            _copy(outside, node)


def _spawn(call: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=_quietly, args=(call, *arguments), daemon=True).start()


def _quietly(call: Callable[..., None], *arguments: Any) -> None:
    with contextlib.suppress(OSError):  # either end may go at any moment
        call(*arguments)


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Until the source has said all; the target then hears that nothing more comes."""
    try:
        while data := source.recv(_READ_BYTES):
            target.sendall(data)
    finally:
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def _reset(connection: socket.socket) -> None:
    """Close it so that the node's program fails at once."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
