"""The relay of a forwarded port: what a browser sends reaches the node only under the cluster's own name."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from ports import free_port

from phalanx.jobs.relay import Relay, host_of, loopback

HOST = host_of("Demo")
BROWSER = "Sec-Fetch-Mode: navigate\r\nCookie: token=of-another-service\r\n"


class Node:
    """The socket of ssh's: it keeps what arrives, and answers with `answer`."""

    def __init__(self, path: str) -> None:
        self.got, self.answer = b"", b"HTTP/1.1 204 No Content\r\n\r\n"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                with self._listener.accept()[0] as client:
                    client.sendall(self.answer)
                    while piece := client.recv(4096):
                        self.got += piece

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)
        self._listener.close()


@pytest.fixture
def node(tmp_path) -> Iterator[Node]:
    with contextlib.closing(Node(str(tmp_path / "node"))) as node:
        yield node


@pytest.fixture
def port(node, tmp_path) -> Iterator[int]:
    port = free_port()
    with contextlib.closing(Relay(port, str(tmp_path / "node"), HOST)):
        yield port


def answer(port: int, *pieces: bytes) -> bytes:
    """Send pieces; return all that comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        for piece in pieces:
            client.sendall(piece)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(4096), b""))


def request(host: str, headers: str = "") -> bytes:
    return f"GET /runs?a=1 HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n".encode()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "other.localhost", "evil.example"])
@pytest.mark.parametrize("headers", [BROWSER, "User-Agent: Mozilla/5.0 (X11)\r\n", "cookie: a=b\r\n"])
def test_a_browser_is_sent_to_the_cluster_s_name(node, port, host, headers):
    sent = request(f"{host}:{port}", headers)
    shown = answer(port, sent[:7], sent[7:40], sent[40:])
    assert b" 307 " in shown and f"\r\nLocation: http://demo.localhost:{port}/runs?a=1\r\n".encode() in shown
    assert node.got == b""


def test_headers_that_are_too_long_to_look_at_do_not_reach_the_node(node, port):
    with contextlib.suppress(OSError):
        answer(port, request("127.0.0.1", f"X: {'x' * (1 << 18)}\r\n{BROWSER}"))
    assert node.got == b""


@pytest.mark.parametrize(
    "sent",
    [
        request("demo.localhost:6006", BROWSER),
        request("DEMO.localhost", BROWSER),
        request("127.0.0.1:6006"),
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n\r\ncookie: in the body\r\n",
        b"EHLO there\r\n",
        b"PING",
        b"\x16\x03\x01\x02\x00",
        b"",
    ],
)
def test_all_else_is_relayed_as_it_is(node, port, sent):
    assert answer(port, sent) == node.answer
    assert node.got == sent


def test_a_port_that_the_node_refuses_is_closed(port, tmp_path):
    (tmp_path / "node").unlink()
    assert answer(port) == b""


def test_nobody_else_gets_what_a_browser_sends_to_the_other_loopback_address(node, port):
    """Browsers resolve NAME.localhost to ::1 first."""
    with socket.create_connection(("::1", port), timeout=30) as client:
        client.sendall(request("127.0.0.1"))
        assert client.recv(4096) == node.answer
    with pytest.raises(OSError):
        socket.create_server(("::1", port), family=socket.AF_INET6).close()


def test_a_port_that_somebody_has_at_the_other_loopback_address_is_taken():
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as others:
        port = others.getsockname()[1]
        with pytest.raises(OSError):
            loopback(port)
        # It is free again.
        socket.create_server(("127.0.0.1", port)).close()


def test_a_free_port_is_free_at_both_loopback_addresses():
    ours = loopback(0)
    assert len({listener.getsockname()[1] for listener in ours}) == 1
    for listener in ours:
        listener.close()


@pytest.fixture
def other(tmp_path) -> Iterator[Node]:
    """The node's ::1."""
    with contextlib.closing(Node(str(tmp_path / "node6"))) as other:
        yield other


@contextlib.contextmanager
def refusing(tmp_path) -> Iterator[list[int]]:
    """Have ssh refuse connections to 127.0.0.1, as it does: it takes them, and closes them. Yield how many."""
    refused: list[int] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "node"))
    listener.listen()

    def refuse() -> None:
        with contextlib.suppress(OSError):
            while True:
                client = listener.accept()[0]
                time.sleep(0.05)
                refused.append(1)
                client.close()

    thread = threading.Thread(target=refuse)
    thread.start()
    try:
        yield refused
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(30)
        listener.close()


@pytest.mark.parametrize("sent", [request("127.0.0.1:6006"), b"PING", b"", request("127.0.0.1") + b"b" * 300_000])
def test_a_port_that_only_ipv6_has_is_reached_without_a_loss(other, tmp_path, sent):
    port = free_port()
    with (
        refusing(tmp_path) as refused,
        contextlib.closing(Relay(port, str(tmp_path / "node"), HOST, lambda: len(refused))),
    ):
        assert answer(port, sent) == other.answer
        assert answer(port, sent) == other.answer
    assert other.got == sent * 2
    assert len(refused) == 1, "the second knows where to go"


def test_a_connection_that_the_node_has_taken_is_never_made_twice(other, tmp_path):
    """A program that closes it without a word may have done what the request says."""
    port = free_port()
    with refusing(tmp_path), contextlib.closing(Relay(port, str(tmp_path / "node"), HOST, lambda: 0)):
        assert answer(port, request("127.0.0.1")) == b""
    assert other.got == b""
