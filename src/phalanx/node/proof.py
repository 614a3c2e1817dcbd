"""Prove that a node is usable: log in to it as jobs do, by name, over ssh."""

from __future__ import annotations

import os
import time
from typing import Any, Sequence

from phalanx.node import trust
from phalanx.node.command import CommandError, run
from phalanx.node.roster import MASTER, Node

_DEADLINE_S = 30.0
# An attempt that took so much longer proves nothing: this machine itself stood still, or was suspended.
_AWAY_S = 6.0
_SETTLE_S = 60.0
_AT_ONCE = 16


def log_in(nodes: Sequence[Node], user: str, uid: int) -> dict[str, str]:
    """Return instance id → reason for each node that did not accept `user` within 30 s of the first attempt."""
    refused: dict[str, str] = {}
    options = _as_user(user, uid)

    def prove(node: Node) -> None:
        reason = _log_in(node, options, time.monotonic() + _DEADLINE_S)
        if reason:
            refused[node.instance_id] = f"{node.instance_id} acknowledged, but ssh {node.name} failed: {reason}"

    trust.in_parallel([lambda n=n: prove(n) for n in nodes], _AT_ONCE)
    return refused


def settle_jobs(command: str, user: str, uid: int) -> None:
    """Run `command`, which restarts the jobs whose runner died with an earlier head, or marks them as lost.

    It runs in a login, for the environment that every job gets. Raises CommandError.
    """
    run(["ssh", "-o", "BatchMode=yes", MASTER, command], _SETTLE_S, **_as_user(user, uid))


def _log_in(node: Node, options: dict[str, Any], end: float) -> str:
    """Return "" if the login worked, or the reason. Retries, since a reloading sshd is away for some milliseconds."""
    pause_s = 0.02
    while True:
        began = time.monotonic()
        try:
            run(["ssh", "-o", "BatchMode=yes", node.name, "true"], _DEADLINE_S, **options)
            return ""
        except CommandError as error:
            took_s = time.monotonic() - began
            end += took_s if took_s > _DEADLINE_S + _AWAY_S else 0
            if time.monotonic() > end:
                return error.output
        time.sleep(pause_s)
        pause_s = min(2.0, pause_s * 2)


def _as_user(user: str, uid: int) -> dict[str, Any]:
    """Return Popen's options for this user; none if there is only one uid, where setgroups is refused."""
    if uid == os.getuid():
        return {}
    environment = {**os.environ, "HOME": f"/home/{user}", "USER": user, "LOGNAME": user}
    return {"user": uid, "group": uid, "extra_groups": [], "env": environment, "cwd": "/"}
