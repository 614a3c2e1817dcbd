"""Which rights roles use: each call that their policies allowed is recorded once, so that the others can be removed."""

from __future__ import annotations

import json
import threading

from localcloud.context import Context
from localcloud.iam.policy import Ask

NAME = "rights.jsonl"
"""The record, in the local cloud's state directory: a line for each role, action and resource."""

_lock = threading.Lock()
_seen: set[tuple[str, str, str]] = set()


def install(context: Context) -> None:
    """Begin a new record."""
    with _lock:
        _seen.clear()
        (context.state / NAME).unlink(missing_ok=True)


def note(context: Context, role: str, ask: Ask) -> None:
    """Record that a role's policies allowed this, with the condition keys of the first such call."""
    kind = (role, ask.action, ask.resource)
    if kind in _seen:
        return
    with _lock:
        if kind in _seen:
            return
        line = {"role": role, "action": ask.action, "resource": ask.resource, "keys": ask.keys}
        with (context.state / NAME).open("a") as record:
            record.write(json.dumps(line) + "\n")
        # Only now: whoever finds it here waits for nobody.
        _seen.add(kind)
