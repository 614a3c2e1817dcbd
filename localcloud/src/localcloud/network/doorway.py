"""Stands before the API: a node's request without a way to its service gets no answer, as if packets were dropped."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

from localcloud.api.admission import VPC
from localcloud.cloudformation.resources.waiting import WAIT_PATH
from localcloud.iam.calls import ENDPOINT_POLICY
from localcloud.network.reach import Way

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
# For as long as Linux tries to connect to an address that drops everything.
_SILENCE_S = 127.0
_SERVICE = re.compile(r"Credential=[^/]+/\d+/[^/]+/([\w.-]+)/aws4_request")
_BUCKETS = "s3"


class Ways(Protocol):
    def way(self, vpc_id: str, address: str, service: str) -> Way | None:
        """Return the way from a node to a service; None if there is none."""
        ...


def around(ways: Ways, app: WsgiApp) -> WsgiApp:
    """Put the doorway before `app`, for requests from VPCs."""

    def judged(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        vpc_id = environ.get(VPC)
        if vpc_id:
            way = ways.way(vpc_id, environ["REMOTE_ADDR"], _service(environ))
            if way is None:
                _say_nothing(environ["werkzeug.socket"])
            else:
                environ[ENDPOINT_POLICY] = way.policy
        return app(environ, start_response)

    return judged


def _service(environ: dict[str, Any]) -> str:
    """Return the service that a request is for; "" if nothing tells, as for one that is not signed."""
    if environ.get("PATH_INFO", "").startswith(WAIT_PATH):
        return _BUCKETS  # docs/aws-behaviour.md 1.10
    found = _SERVICE.search(environ.get("HTTP_AUTHORIZATION", ""))
    return found[1].lower() if found else ""


def _say_nothing(connection: socket.socket) -> None:
    """Wait until the client gives up, and end the connection without an answer. Raises ConnectionAbortedError."""
    connection.settimeout(_SILENCE_S)
    with suppress(OSError):
        while connection.recv(65536):
            pass
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionAbortedError("no way to the service")
