"""phalanx exporter: serve what jobs do to Prometheus, from this machine."""

from __future__ import annotations

import hmac
import http
import ipaddress
import re
import signal
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import click

from phalanx.cli.console import note
from phalanx.cli.options import cluster_option, debug_option, load_cluster
from phalanx.errors import PhalanxError
from phalanx.jobs.loads import seen
from phalanx.jobs.tunnel import PortTakenError

try:
    from phalanx.jobs import metrics
except ModuleNotFoundError as error:
    if error.name != "prometheus_client":
        raise
    metrics = None

_TOKEN = re.compile(rb"[\x21-\x7e]{16,512}")
_REQUEST_WITHIN_S = 10.0
_MOST_AT_ONCE, _MOST_SILENT = 8, 64


def _address(_: click.Context, __: click.Parameter, value: str) -> tuple[str, int]:
    """Parse ADDRESS:PORT."""
    host, _colon, port = value.rpartition(":")
    try:
        return str(ipaddress.ip_address(host.strip("[]") if host != "localhost" else "127.0.0.1")), _port(port)
    except ValueError:
        raise click.BadParameter(f"'{value}' is not of the form ADDRESS:PORT, such as 127.0.0.1:9400") from None


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise ValueError(text)
    return int(text)


def _token(_: click.Context, __: click.Parameter, path: Path | None) -> bytes:
    """Read the token, which is never shown."""
    if path is None:
        return b""
    try:
        with path.open("rb") as file:
            token = file.read(1024).strip()
    except OSError as error:
        raise click.BadParameter(f"can't read {path}: {error.strerror}") from None
    if not _TOKEN.fullmatch(token):
        raise click.BadParameter(f"{path} has no token: 16 to 512 letters, digits or signs, without spaces")
    return token


@click.command("exporter")
@cluster_option
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    default="127.0.0.1:9400",
    show_default=True,
    callback=_address,
    help="Where on this machine.",
)
@click.option(
    "--token-file",
    "token",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    callback=_token,
    help="A file with the token that requests must have; needed for an address that others reach.",
)
@debug_option
def command(name: str | None, file: Path | None, listen: tuple[str, int], token: bytes) -> int:
    """Serve the load of the nodes, and how far ranks are, as metrics for Prometheus, until Ctrl-C.

    Nothing listens on a node: each request asks the cluster, over ssh. On a loopback address, only requests for this
    machine by name are answered, and every user of this machine may send them. Any other address needs --token-file;
    Prometheus sends the token with `authorization: {credentials_file: FILE}`.

    \b
    Examples:
      phalanx exporter
      phalanx exporter --listen 0.0.0.0:9400 --token-file ~/.phalanx-token
    """
    if metrics is None:
        raise PhalanxError(
            "`phalanx exporter` needs prometheus_client", "pip install 'phalanx[ui]'", code="extra-missing"
        )
    is_loopback = ipaddress.ip_address(listen[0]).is_loopback
    if not is_loopback and not token:
        raise click.UsageError(f"others reach {listen[0]}: --token-file is needed, or a loopback address")
    cluster = load_cluster(name, file)
    cluster.require_ready()
    found = metrics.Metrics(cluster.name, lambda: seen(cluster), lambda text: note(f"no answer: {text}"))
    server = _serve(listen, is_loopback, token, found.text)
    shown = f"[{listen[0]}]" if ":" in listen[0] else listen[0]
    note(f"http://{shown}:{server.server_address[1]}/metrics has the metrics of {cluster.name}, until Ctrl-C")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        note("")
    finally:
        server.server_close()
    return 0


class _Server(socketserver.ThreadingTCPServer):
    """Has few connections whose request has not come: others can open as many as they like. The oldest is ended."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        self._silent: dict[Any, None] = {}
        self._guard = threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            self._silent[request] = None
            if len(self._silent) > _MOST_SILENT:
                oldest = next(iter(self._silent))
                del self._silent[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def has_come(self, request: Any) -> None:
        """Note that a connection's request has come, or that it ended."""
        with self._guard:
            self._silent.pop(request, None)

    def shutdown_request(self, request: Any) -> None:
        self.has_come(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _serve(listen: tuple[str, int], is_loopback: bool, token: bytes, text: Callable[[], bytes]) -> _Server:
    """Return a server that answers GET /metrics. Raises PortTakenError if the address can't be had."""
    expected = b"Bearer " + token
    slots = threading.BoundedSemaphore(_MOST_AT_ONCE)

    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_WITHIN_S

        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "").encode("utf-8", "replace")
            if is_loopback and not _is_for_here(self.headers.get("Host", ""), *self.connection.getsockname()[:2]):
                self._answer(http.HTTPStatus.FORBIDDEN)
            elif token and not hmac.compare_digest(given, expected):
                self._answer(http.HTTPStatus.UNAUTHORIZED)
            elif self.path.partition("?")[0] != "/metrics":
                self._answer(http.HTTPStatus.NOT_FOUND)
            elif not slots.acquire(blocking=False):
                self._answer(http.HTTPStatus.SERVICE_UNAVAILABLE)
            else:
                try:
                    server.has_come(self.request)
                    self._answer(http.HTTPStatus.OK, text())
                finally:
                    slots.release()

        def _answer(self, status: http.HTTPStatus, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def version_string(self) -> str:
            return "phalanx"

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a request every few seconds is usual."""

    _Server.address_family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
    try:
        server = _Server(listen, Handler)
    except OSError as error:
        why = f"can't listen on {listen[0]}:{listen[1]}: {error.strerror}"
        raise PortTakenError(why, "Choose another: --listen.") from None
    return server


def _is_for_here(host: str, address: str, port: int) -> bool:
    """Whether a request names this machine as people do: a page of another site would send that site's name."""
    return host in {f"{name}:{port}" for name in ("localhost", address, f"[{address}]")}
