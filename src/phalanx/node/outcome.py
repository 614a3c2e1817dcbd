"""The outcome of the cluster's creation: messages for people, and the signal to CloudFormation."""

from __future__ import annotations

import json
from typing import Any, Optional

from phalanx.node import wire
from phalanx.node.roster import Roster
from phalanx.node.settings import Patience
from phalanx.node.sigv4 import Request

# docs/aws-behaviour.md 1.11: 4,096 bytes, less what CloudFormation adds.
_LIMIT_BYTES = 3900


def summary(roster: Optional[Roster]) -> str:
    """Return the outcome as JSON, short enough for a signal: reasons are cut, and left out if necessary."""
    assert roster is not None
    for most in (1000, 250, 80, 0):
        missing = [m._replace(reason=m.reason[:most])._asdict() for m in roster.missing]
        text = _summary(roster, missing)
        if len(text.encode()) <= _LIMIT_BYTES:
            return text
    return _summary(roster, [])


def _summary(roster: Roster, missing: list[dict[str, Any]]) -> str:
    data = {
        "requested": roster.requested,
        "launched": len(roster.nodes),
        "generation": roster.generation,
        "missing": missing,
    }
    return json.dumps(data, separators=(",", ":"))


def boot_failure(message: dict[str, Any]) -> str:
    """Describe a `failed` message: the node, the command and its output."""
    return (
        f"boot step '{message['step']}' failed on {message['instance_id']}: "
        f"{message['command']}: exit {message['exit']}: {message['output']}"
    )


def signal(url: str, status: str, text: str, patience: Patience) -> None:
    """PUT the outcome to the wait condition's handle, which ignores a second one. Raises OSError.

    Without a Content-Type, which the presigned URL would not match (docs/aws-behaviour.md 1.10).
    """
    content = {"Status": status, "UniqueId": "phalanx", "Data": text, "Reason": "the cluster is ready"}
    if status == "FAILURE":
        content.update(Data="", Reason=text.encode()[:_LIMIT_BYTES].decode("utf-8", "ignore"))
    request = Request("PUT", url, {}, json.dumps(content).encode())
    what = "the signal to CloudFormation"
    wire.insist(lambda: wire.fetch(request, 10), patience.signal_s, patience.pause_s, what)
