"""Measures one link, over TCP: the receiving side, and what a sender finds out with it. Only the standard library."""

from __future__ import annotations

import socket
import statistics
import struct
import threading
import time

# EC2 limits one flow to 5 Gbit/s, and to 10 within a cluster placement group (docs/aws-behaviour.md 2.46).
STREAMS = 4
_SEND_S = 0.5
_ROUND_TRIPS = 40
_TIMEOUT_S = 20.0
_CHUNK = memoryview(bytes(1 << 20))
_ECHO, _COUNT = b"e", b"c"


def listen() -> int:
    """Answer senders in threads for as long as this process runs; return the port."""
    listener = socket.create_server(("", 0), backlog=4 * STREAMS)
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    return listener.getsockname()[1]


def _accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    """Echo what comes, or count it until its end and answer with the number."""
    with connection:
        _prepare(connection)
        kind = connection.recv(1)
        count = 0
        while data := connection.recv(1 << 20):
            count += len(data)
            if kind == _ECHO:
                connection.sendall(data)
        if kind == _COUNT:
            connection.sendall(struct.pack("!Q", count))


def round_trip_s(address: str, port: int) -> float:
    """Return the median time of a round trip of one byte. Raises OSError."""
    with _connect(address, port, _ECHO) as connection:
        return statistics.median(_one_round_trip_s(connection) for _ in range(_ROUND_TRIPS))


def _one_round_trip_s(connection: socket.socket) -> float:
    began_s = time.perf_counter()
    connection.sendall(b"x")
    connection.recv(1)
    return time.perf_counter() - began_s


def rate_bit_s(address: str, port: int) -> float:
    """Return how fast data arrive there, over several connections at once. Raises OSError."""
    connections = [_connect(address, port, _COUNT) for _ in range(STREAMS)]
    counts = [0] * STREAMS
    began_s = time.perf_counter()
    threads = [threading.Thread(target=_send, args=(connections[i], counts, i, began_s)) for i in range(STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not all(counts):
        raise TimeoutError("a connection broke while it was measured")
    return sum(counts) * 8 / (time.perf_counter() - began_s)


def _send(connection: socket.socket, counts: list[int], number: int, began_s: float) -> None:
    """Send for a while, and note how much the other side has received; 0 if the connection broke."""
    try:
        with connection:
            while time.perf_counter() < began_s + _SEND_S:
                connection.sendall(_CHUNK)
            connection.shutdown(socket.SHUT_WR)
            (counts[number],) = struct.unpack("!Q", connection.recv(8, socket.MSG_WAITALL))
    except (OSError, struct.error):
        counts[number] = 0


def _connect(address: str, port: int, kind: bytes) -> socket.socket:
    connection = socket.create_connection((address, port), _TIMEOUT_S)
    _prepare(connection)
    connection.sendall(kind)
    return connection


def _prepare(connection: socket.socket) -> None:
    connection.settimeout(_TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
