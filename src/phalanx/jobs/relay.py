"""Relays a port of this machine to a socket of ssh's, and sends browsers to a name that only this cluster has.

Cookies belong to a host name, whatever the port. At 127.0.0.1, a page of a job would get those of all services on the
user's machine. Browsers resolve NAME.localhost to loopback (RFC 6761), but a page could send them on to 127.0.0.1. So
nothing that a browser sends under another name reaches the node.
"""

from __future__ import annotations

import contextlib
import errno
import re
import select
import socket
import threading
from collections.abc import Callable

_READ_BYTES = 1 << 16
_MOST_HEAD_BYTES, _MOST_KEPT_BYTES = 1 << 17, 1 << 20
_REQUEST = re.compile(rb"[A-Za-z]+ (\S+) HTTP/1\.[01]\r?")
_PERHAPS_REQUEST = re.compile(rb"[A-Za-z]+(?: [^\n]*)?\Z")
_END_OF_HEADERS = re.compile(rb"\n\r?\n")
_HOST = re.compile(rb"\nhost:[ \t]*([^\s:]*)", re.IGNORECASE)
# Every browser sends the first with each request to loopback, and no script can change it; the others are of old ones.
_BROWSER = re.compile(rb"\n(?:sec-fetch-mode:|cookie:|user-agent:[ \t]*mozilla/)", re.IGNORECASE)


def host_of(cluster: str) -> str:
    """Return the name for this machine under which a browser finds pages of a cluster."""
    return f"{cluster.lower()}.localhost"


def loopback(port: int) -> list[socket.socket]:
    """Listen on this port of all loopback addresses that this machine has; 0: on a free one. Raises OSError.

    Browsers resolve NAME.localhost to ::1 first: another user who listens there would get what they send.
    """
    first = socket.create_server(("127.0.0.1", port))
    try:
        return [first, socket.create_server(("::1", first.getsockname()[1]), family=socket.AF_INET6)]
    except OSError as error:
        if error.errno in _NO_IPV6:
            return [first]
        first.close()
        if port or error.errno != errno.EADDRINUSE:
            raise
        return loopback(port)


_NO_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class Relay:
    """Accepts connections to a port of loopback, as long as this process lives or until `close`. Raises OSError.

    They go to the node's 127.0.0.1, at the socket `path`, or else to its ::1, at `path`6. `refusals` counts the
    connections that the node has refused.
    """

    def __init__(self, port: int, path: str, host: str, refusals: Callable[[], int] = lambda: 0) -> None:
        self._paths, self._host, self._port, self._refusals = [path, f"{path}6"], host, port, refusals
        self._listeners = loopback(port)
        for listener in self._listeners:
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def close(self) -> None:
        """Accept no further connection."""
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                threading.Thread(target=self._relay, args=(listener.accept()[0],), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            said = _Opening(client)
            for path in list(self._paths):
                before = self._refusals()
                with socket.socket(socket.AF_UNIX) as node:
                    node.connect(path)
                    if self._through(node, said) or self._refusals() == before:
                        return
                # The next connections begin elsewhere.
                self._paths.sort(key=lambda one: one == path)

    def _through(self, node: socket.socket, said: _Opening) -> bool:
        """Relay a connection to its end; return False, with nothing lost, if the node closes it without a word."""
        back = threading.Thread(target=_pump, args=(node, said.client), daemon=True)
        try:
            while not said.is_whole:
                if said.is_closed_by(node, back):
                    return False
            if elsewhere := self._elsewhere(said.bytes):
                said.client.sendall(elsewhere)
                return True
            said.send(node)
            while not back.ident and len(said.bytes) < _MOST_KEPT_BYTES:
                if said.is_closed_by(node, back, node):
                    return False
            if not back.ident:
                back.start()
            if not said.has_ended:
                _pump(said.client, node)
            back.join()
            return True
        finally:
            _end(node)  # `back` waits for it

    def _elsewhere(self, said: bytes) -> bytes:
        """Return the answer that sends a browser to the cluster's own name; b"" for what goes to the node."""
        headers = _END_OF_HEADERS.split(said, 1)[0]
        request, host = _REQUEST.match(headers), _HOST.search(headers)
        if not request or not _BROWSER.search(headers) or (host and host[1].lower() == self._host.encode()):
            return b""
        path = request[1] if request[1].startswith(b"/") else b"/"
        place = b"http://%s:%d%s" % (self._host.encode(), self._port, path)
        ended = b"Content-Length: 0\r\nConnection: close\r\n\r\n"
        return b"HTTP/1.1 307 Temporary Redirect\r\nLocation: " + place + b"\r\n" + ended


class _Opening:
    """What a client has said, which is kept until the node says something: another connection may have to say it again.

    Of an HTTP request, it is whole with all headers.
    """

    def __init__(self, client: socket.socket) -> None:
        self.client, self.bytes = client, b""
        self.is_whole = self.has_ended = False

    def send(self, node: socket.socket) -> None:
        """Send it, if the node has not closed the connection."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            node.sendall(self.bytes)
            if self.has_ended:
                node.shutdown(socket.SHUT_WR)

    def is_closed_by(self, node: socket.socket, back: threading.Thread, sink: socket.socket | None = None) -> bool:
        """Wait for either end, and return whether the node has closed the connection without a word.

        At its first word, `back` begins. What the client says is sent on to `sink`. Raises OSError if the headers of a
        request are too long.
        """
        open_ends = [] if self.has_ended else [self.client]
        ready = select.select([*open_ends, *([] if back.ident else [node])], [], [])[0]
        if node in ready:
            if _has_closed(node):
                return True
            back.start()
        elif ready:
            self._add(piece := self.client.recv(_READ_BYTES))
            if sink:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    sink.sendall(piece)
                    if not piece:
                        sink.shutdown(socket.SHUT_WR)
        return False

    def _add(self, piece: bytes) -> None:
        self.bytes += piece
        self.has_ended = not piece
        if self.is_whole:
            return
        line, ended, _ = self.bytes.partition(b"\n")
        is_request = _REQUEST.fullmatch(line) if ended else _PERHAPS_REQUEST.match(line)
        self.is_whole = not piece or not is_request or bool(_END_OF_HEADERS.search(self.bytes))
        if not self.is_whole and len(self.bytes) >= _MOST_HEAD_BYTES:
            raise ConnectionError("the headers are too long")


def _has_closed(node: socket.socket) -> bool:
    """Whether a socket at which something happens has been closed."""
    try:
        return not node.recv(1, socket.MSG_PEEK)
    except ConnectionResetError:  # it left unread what was sent
        return True


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while piece := source.recv(_READ_BYTES):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        _end(source)
        _end(sink)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
