"""Which rights roles use: each call that their policies allowed is recorded once, so that the others can be removed."""

from __future__ import annotations

import json
import threading
from collections import Counter

from localcloud.context import Context
from localcloud.iam.policy import Ask

NAME = "rights.jsonl"
"""The record, in the local cloud's state directory: a line for each role, action and resource."""

_lock = threading.Lock()
_seen: set[tuple[str, str, str]] = set()
# A role that may use any object names as many resources as it likes.
_MOST_OF_A_ROLE = 10_000
_of_role: Counter[str] = Counter()


def install(context: Context) -> None:
    """Begin a new record."""
    with _lock:
        _seen.clear()
        _of_role.clear()
        (context.state / NAME).unlink(missing_ok=True)


def note(context: Context, role: str, ask: Ask) -> None:
    """Record that a role's policies allowed this, with the condition keys of the first such call."""
    kind = (role, ask.action, ask.resource)
    if kind in _seen or _of_role[role] >= _MOST_OF_A_ROLE:
        return
    with _lock:
        if kind in _seen:
            return
        _of_role[role] += 1
        line = {"role": role, "action": ask.action, "resource": ask.resource, "keys": ask.keys}
        with (context.state / NAME).open("a") as record:
            record.write(json.dumps(line) + "\n")
        # Only now: whoever finds it here waits for nobody.
        _seen.add(kind)
