"""endpoint.json in the state directory: the running local cloud's address, its process, its administrator's keys."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import urllib.parse
from pathlib import Path
from typing import Any

_NAME = "endpoint.json"
FORMAT = 1
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
        return runs(read(state))
    except (OSError, ValueError):
        return False


def process_record(pid: int) -> dict[str, int]:
    """Return what identifies a process: its pid alone may be another program's by the time that somebody reads it."""
    return {"pid": pid, "started_ticks": _started_ticks(pid) or 0}


def runs(record: object) -> bool:
    """Whether the process of a record, by `pid` and `started_ticks`, still runs."""
    if not isinstance(record, dict) or not isinstance(record.get("pid"), int):
        return False
    started = _started_ticks(record["pid"])
    return started is not None and started == record.get("started_ticks")


def _started_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the machine did; None if it has ended, also for a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])  # the 3rd and the 22nd of proc(5)


def ask(state: Path, method: str, name: str, document: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Call a control endpoint; return None when there is no local cloud or it doesn't answer."""
    try:
        endpoint = read(state)
        where = urllib.parse.urlsplit(endpoint["url"])
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=_ANSWER_TIMEOUT_S)
        with contextlib.closing(connection):
            headers = {"X-Localcloud-Key": endpoint["secret_access_key"]}
            connection.request(method, f"/_localcloud/{name}", json.dumps(document or {}), headers)
            return json.loads(connection.getresponse().read())
    except (OSError, ValueError, KeyError, http.client.HTTPException):
        return None


def read(state: Path) -> dict[str, Any]:
    """Return what the file says. Raises OSError without one, and ValueError for one that is cut short."""
    return json.loads((state / _NAME).read_text())
