"""What one client of the local cloud's servers may take: others keep their place, whatever it does."""

from __future__ import annotations

import io
import logging
import resource
import socket
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from http import HTTPStatus

log = logging.getLogger(__name__)
VPC = "localcloud.vpc"
"""The key of a request's VPC in its WSGI environment, "" for one from this machine."""

Peer = tuple[str, str]
"""A node, by its VPC and its address, which no other node can send from (nodes.vpc)."""
USER: Peer = ("", "")
"""All processes of this machine's user and of root together."""
OTHERS: Peer = ("", "other users")
"""The processes of all other accounts of this machine: one user may have thousands of them (subuid(5))."""
FUNCTIONS: Peer = ("", "functions")
"""The Lambda functions, which are processes of this machine's user."""

PEER = "localcloud.peer"
"""The key of the peer that a request is from, in its WSGI environment."""

HEADER_BYTES, HEADERS_S = 1 << 16, 30.0
_PIECE_BYTES = 1 << 17
_MOST_SHARED = 1024


def answer(status: HTTPStatus, *headers: str) -> bytes:
    """Return a refusal without a body, which fits all of AWS's protocols."""
    lines = (f"HTTP/1.1 {status} {status.phrase}", *headers, "Content-Length: 0", "Connection: close", "", "")
    return "\r\n".join(lines).encode()


_served: ContextVar[Peer] = ContextVar("served", default=USER)


def served() -> Peer:
    """Return whose request this thread carries out; outside of a request, this machine's user."""
    return _served.get()


@contextmanager
def serving(peer: Peer) -> Iterator[None]:
    """Carry out a request of this peer in the block."""
    before = _served.set(peer)
    try:
        yield
    finally:
        _served.reset(before)


BUSY = answer(HTTPStatus.SERVICE_UNAVAILABLE, "Retry-After: 1")
"""SDKs, the agent and objects.s3_client try again."""


class Share:
    """Something of which each peer has `own`, and up to `most` as long as the part that all share is not used up.

    This machine's user shares nothing: `of_user` is kept free.
    """

    def __init__(self, own: int, most: int, shared: int, of_user: int = 0) -> None:
        self._own, self._most, self._shared, self._of_user = own, most, shared, of_user
        self._taken: dict[Peer, int] = {}
        self._lent = 0
        self._changed = threading.Condition()

    def most(self, peer: Peer) -> int:
        """Return what a peer may have at once."""
        return self._of_user if peer == USER else self._most

    def take(self, peer: Peer, count: int = 1, wait_s: float = 0.0) -> bool:
        """Take some, if need be once others have given theirs back; return whether that was possible in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._fits(peer, count), wait_s):
                return False
            self._add(peer, count)
            return True

    def give_back(self, peer: Peer, count: int = 1) -> None:
        with self._changed:
            self._add(peer, -count)
            self._changed.notify_all()

    def taken(self) -> dict[Peer, int]:
        """Return what each peer has; without those that have nothing."""
        with self._changed:
            return dict(self._taken)

    def settle(self, found: Mapping[Peer, int]) -> None:
        """Note what each peer really has, even if it may not have so much; those that are left out have nothing."""
        with self._changed:
            for peer in {*self._taken, *found}:
                self._add(peer, found.get(peer, 0) - self._taken.get(peer, 0))
            self._changed.notify_all()

    def _fits(self, peer: Peer, count: int) -> bool:
        before = self._taken.get(peer, 0)
        if before + count > self.most(peer):
            return False
        more = self._borrowed(peer, before + count) - self._borrowed(peer, before)
        return not more or self._lent + more <= self._shared

    def _add(self, peer: Peer, count: int) -> None:
        before = self._taken.pop(peer, 0)
        if before + count:
            self._taken[peer] = before + count
        self._lent += self._borrowed(peer, before + count) - self._borrowed(peer, before)

    def _borrowed(self, peer: Peer, taken: int) -> int:
        return 0 if peer == USER else max(0, taken - self._own)


def connections(own: int, most: int, of_user: int = 0) -> Share:
    """Return the connections of a server; all together leave most of the files that this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Share(own, most, min(_MOST_SHARED, files // 4), of_user)


def admit(share: Share, peer: Peer, serve: Callable[[], None], refuse: Callable[[], None]) -> None:
    """Call `serve` in a thread and count it until it returns; call `refuse` if the peer has as many as it may."""
    if not share.take(peer):
        refuse()
        return
    try:
        # Thread.start() would wait until the thread runs, while hundreds of nodes want to connect.
        start_new_thread(_counted, (share, peer, serve))
    except RuntimeError as problem:
        log.warning("no thread for a connection: %s", problem)
        share.give_back(peer)
        refuse()


def _counted(share: Share, peer: Peer, serve: Callable[[], None]) -> None:
    try:
        serve()
    finally:
        share.give_back(peer)


def turn_away(connection: socket.socket) -> None:
    """Answer a connection that is one too many, and close it, without waiting for its client."""
    with suppress(OSError), connection:
        connection.setblocking(False)
        connection.send(BUSY)
        connection.shutdown(socket.SHUT_WR)


class Incoming(io.RawIOBase):
    """What a client sends: the bytes that are expected of it, until the time at which they must have arrived.

    Reading raises TimeoutError then, and nothing is left to read after the last of them.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.expect(HEADER_BYTES, HEADERS_S)

    def expect(self, count: int, within_s: float) -> None:
        """Accept this many more bytes from now on."""
        self._left, self._end = count, time.monotonic() + within_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        # A socket with a timeout of 0 would not wait for what has arrived just now.
        self._connection.settimeout(max(0.001, self._end - time.monotonic()))
        size = min(len(buffer), self._left, _PIECE_BYTES)
        count = self._connection.recv_into(buffer, size) if size else 0
        self._left -= count
        return count
