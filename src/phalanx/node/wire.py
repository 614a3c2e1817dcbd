"""HTTP over persistent connections, and retries."""

from __future__ import annotations

import http.client
import random
import threading
import time
from typing import Callable
from urllib.parse import urlsplit

from phalanx.node.sigv4 import Request

_kept = threading.local()


class HttpError(OSError):
    """The server answered with another status than 2xx."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP {status}: {body[:500].decode('utf-8', 'replace')}")
        self.status, self.body = status, body


def fetch(request: Request, timeout_s: float) -> bytes:
    """Send a request and return the body of the answer. Raises HttpError, or OSError if none came."""
    parts = urlsplit(request.url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    key = f"{parts.scheme} {parts.netloc}"
    connection = _kept.__dict__.pop(key, None)
    if connection is None:
        connection = (http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection)(
            parts.netloc
        )
    connection.timeout = timeout_s
    if connection.sock:
        connection.sock.settimeout(timeout_s)
    try:
        connection.request(request.method, path, request.body or None, request.headers)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise error if isinstance(error, OSError) else OSError(f"broken answer: {error!r}") from error
    _kept.__dict__[key] = connection
    if answer.status // 100 != 2:
        raise HttpError(answer.status, body)
    return body


def forget() -> None:
    """Close this thread's connections, for they end with the address that they were made from."""
    for connection in _kept.__dict__.values():
        connection.close()
    _kept.__dict__.clear()


def insist(
    attempt: Callable[[], bytes], within_s: float, longest_pause_s: float, what: str, refusals_pass: bool = False
) -> bytes:
    """Retry with growing, random pauses. Raises OSError after `within_s`; for 4xx at once unless `refusals_pass`."""
    end = time.monotonic() + within_s
    for count in range(1000):
        try:
            return attempt()
        except OSError as error:
            refused = isinstance(error, HttpError) and 400 <= error.status < 500
            if (refused and not refusals_pass) or time.monotonic() > end:
                raise OSError(f"{what}: {error}") from error
        pause(count, longest_pause_s)
    raise OSError(f"{what}: no answer")


def pause(count: int, longest_s: float) -> None:
    """Wait before attempt number `count` + 1: at most 0.05 s at first, `longest_s` in the end."""
    time.sleep(random.uniform(0.5, 1) * min(longest_s, 0.05 * 2 ** min(count, 9)))
