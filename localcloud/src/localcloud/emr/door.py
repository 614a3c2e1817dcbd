"""Where the controllers of instances call: EMR's own channel, which AWS does not document."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localcloud.emr.launching import DOOR_PATH
from localcloud.emr.reports import VERBS
from localcloud.emr.service import Service

__all__ = ["DOOR_PATH", "answer"]
_CONTROLLER = Path(__file__).with_name("controller.py")
_MOST_BYTES = 64 * 1024


def answer(service: Service, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """Answer a report: POST /_emr/TOKEN/VERB, with JSON both ways. A token stands for one instance.

    GET /_emr/TOKEN/controller returns the controller's source.
    """
    token, _, verb = environ["PATH_INFO"].removeprefix(DOOR_PATH).partition("/")
    report = _report(environ)
    with service.changed:
        member = service.member(token)
        if member is None:
            return _respond(start_response, "404 Not Found", b"{}")
        if verb == "controller":
            return _respond(start_response, "200 OK", _CONTROLLER.read_bytes())
        if verb not in VERBS or report is None:
            return _respond(start_response, "404 Not Found", b"{}")
        return _respond(start_response, "200 OK", json.dumps(VERBS[verb](service, member, report)).encode())


def _report(environ: dict[str, Any]) -> dict[str, Any] | None:
    length = min(int(environ.get("CONTENT_LENGTH") or 0), _MOST_BYTES)
    try:
        found = json.loads(environ["wsgi.input"].read(length) or b"{}")
    except ValueError:
        return None
    return found if isinstance(found, dict) and environ["REQUEST_METHOD"] == "POST" else None


def _respond(start_response: Callable[..., Any], status: str, body: bytes) -> list[bytes]:
    start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
