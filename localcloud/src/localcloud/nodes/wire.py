"""Messages between the API process and the supervisor: one JSON object per packet, with file descriptors."""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

# user data is 16 KiB at most, 22 KiB in base64
_PACKET_BYTES = 1 << 17
_MAX_FDS = 1
# What is larger, such as the states of 512 nodes, is in a file whose descriptor comes with this packet.
_IN_A_FILE = b"{}"


def pair() -> tuple[socket.socket, socket.socket]:
    """Return a pair of connected sockets that preserve packets."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def timeval(seconds: int) -> bytes:
    """A struct timeval, for SO_SNDTIMEO."""
    return seconds.to_bytes(8, sys.byteorder) + bytes(8)


def send(channel: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    """Send a message of any size; a large one without descriptors. Raises OSError."""
    data = json.dumps(message).encode()
    if len(data) <= _PACKET_BYTES:
        socket.send_fds(channel, [data], list(fds))
        return
    with open(os.memfd_create("message"), "w+b") as file:
        file.write(data)
        file.seek(0)
        socket.send_fds(channel, [_IN_A_FILE], [file.fileno()])


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and its descriptors; None when the other side is gone."""
    try:
        data, fds, _flags, _address = socket.recv_fds(channel, _PACKET_BYTES, _MAX_FDS)
    except ConnectionError:
        return None
    if data == _IN_A_FILE:
        with open(fds.pop(), "rb") as file:
            data = file.read()
    return (json.loads(data), fds) if data else None
