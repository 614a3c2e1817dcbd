"""Relays a port of this machine to a socket of ssh's, and sends browsers to a name that only this cluster has.

Cookies belong to a host name, whatever the port. At 127.0.0.1, a page of a job would get those of all services on the
user's machine. Browsers resolve NAME.localhost to loopback (RFC 6761), but a page could send them on to 127.0.0.1. So
nothing that a browser sends under another name reaches the node.
"""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import threading

_READ_BYTES = 1 << 16
_MOST_HEAD_BYTES = 1 << 17
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
    """Accepts connections to a port of loopback, as long as this process lives or until `close`. Raises OSError."""

    def __init__(self, port: int, path: str, host: str) -> None:
        self._path, self._host, self._port = path, host, port
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
        with client, socket.socket(socket.AF_UNIX) as node, contextlib.suppress(OSError):
            node.connect(self._path)
            back = threading.Thread(target=_pump, args=(node, client), daemon=True)
            back.start()
            try:
                said = _opening(client)
                if elsewhere := self._elsewhere(said):
                    client.sendall(elsewhere)
                else:
                    node.sendall(said)
                    _pump(client, node)
                    back.join()
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


def _opening(client: socket.socket) -> bytes:
    """Receive what a client says first: of an HTTP request, all headers. Raises OSError if they are too long."""
    said = b""
    while len(said) < _MOST_HEAD_BYTES:
        piece = client.recv(_READ_BYTES)
        said += piece
        line, ended, _ = said.partition(b"\n")
        is_request = _REQUEST.fullmatch(line) if ended else _PERHAPS_REQUEST.match(line)
        if not piece or not is_request or _END_OF_HEADERS.search(said):
            return said
    raise ConnectionError("the headers are too long")


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
