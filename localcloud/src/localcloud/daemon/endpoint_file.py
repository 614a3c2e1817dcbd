"""endpoint.json in the state directory: the running local cloud's address and its administrator's keys."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import urllib.parse
from pathlib import Path
from typing import Any

_NAME = "endpoint.json"
_ANSWER_TIMEOUT_S = 20.0


def write(state: Path, endpoint: dict[str, Any]) -> None:
    """Write the file atomically, readable only by this user."""
    path = state / _NAME
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(endpoint, file)
    temporary.rename(path)


def remove(state: Path) -> None:
    """Remove the file, if it exists."""
    (state / _NAME).unlink(missing_ok=True)


def is_live(state: Path) -> bool:
    """Whether its process lives; one that was killed leaves its file behind."""
    try:
        os.kill(_read(state)["pid"], 0)
    except (OSError, ValueError, KeyError):
        return False
    return True


def ask(state: Path, method: str, name: str, document: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Call a control endpoint; return None when there is no local cloud or it doesn't answer."""
    try:
        endpoint = _read(state)
        where = urllib.parse.urlsplit(endpoint["url"])
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=_ANSWER_TIMEOUT_S)
        with contextlib.closing(connection):
            headers = {"X-Localcloud-Key": endpoint["secret_access_key"]}
            connection.request(method, f"/_localcloud/{name}", json.dumps(document or {}), headers)
            return json.loads(connection.getresponse().read())
    except (OSError, ValueError, KeyError, http.client.HTTPException):
        return None


def _read(state: Path) -> dict[str, Any]:
    return json.loads((state / _NAME).read_text())
