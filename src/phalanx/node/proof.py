"""Prove that a node is usable: log in to it as jobs do, by name, over ssh.

The client is root's, so that no job ends it or writes to its output.
"""

from __future__ import annotations

import time
from typing import Sequence

from phalanx.node import trust
from phalanx.node.command import CommandError, run
from phalanx.node.roster import MASTER, Node

_DEADLINE_S = 30.0
# An attempt that took so much longer proves nothing: this machine itself stood still, or was suspended.
_AWAY_S = 6.0
_SETTLE_S = 60.0
_AT_ONCE = 16
_SSH = ["ssh", "-F", "/etc/ssh/ssh_config", "-o", "BatchMode=yes"]
# A node may send any amount of output for as long as the login takes: the client ends at this.
_OUTPUT_BYTES = 1 << 20


def log_in(nodes: Sequence[Node]) -> dict[str, str]:
    """Return instance id → reason for each node that did not accept the job user within 30 s of the first attempt."""
    refused: dict[str, str] = {}

    def prove(node: Node) -> None:
        reason = _log_in(node, time.monotonic() + _DEADLINE_S)
        if reason:
            refused[node.instance_id] = f"{node.instance_id} acknowledged, but ssh {node.name} failed: {reason}"

    trust.in_parallel([lambda n=n: prove(n) for n in nodes], _AT_ONCE)
    return refused


def settle_jobs(command: str) -> None:
    """Run `command`, which restarts the jobs whose runner died with an earlier head, or marks them as lost.

    It runs in a login, for the environment that every job gets. Raises CommandError.
    """
    run([*_SSH, MASTER, command], _SETTLE_S, most_bytes=_OUTPUT_BYTES)


def _log_in(node: Node, end: float) -> str:
    """Return "" if the login worked, or the reason. Retries, since a reloading sshd is away for some milliseconds."""
    pause_s = 0.02
    while True:
        began = time.monotonic()
        try:
            run([*_SSH, node.name, "true"], _DEADLINE_S, most_bytes=_OUTPUT_BYTES)
            return ""
        except CommandError as error:
            took_s = time.monotonic() - began
            end += took_s if took_s > _DEADLINE_S + _AWAY_S else 0
            if time.monotonic() > end:
                return error.output
        time.sleep(pause_s)
        pause_s = min(2.0, pause_s * 2)
