"""The membership of this moment, and how long a job waits for a node in it that lets nobody in yet."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

from phalanx.node import validate
from phalanx.runner.system import roster_path

if TYPE_CHECKING:
    from typing import Dict, List, Optional

    from phalanx.node.roster import Node, Roster
    from phalanx.runner.process import JobDescription

# The head names a node some seconds before that node's own sshd trusts the cluster, and every sshd is away for a
# moment when it reads its new certificate. So long after a change who refuses is waited for.
_SETTLES_WITHIN_S = 30.0
_AGAIN_AFTER_S = 0.5


# From a node's start to its word that all is there; with a copy of the code to make, what large code takes.
_ANSWER_WITHIN_S = 60.0
_PLACED_WITHIN_S = 1800.0


def answer_within_s(job: JobDescription) -> float:
    """How long an attempt waits for every node's checks. Who is silent meanwhile is given up long before."""
    return _PLACED_WITHIN_S if job.sync_dir else _ANSWER_WITHIN_S


def read_roster() -> Roster:
    """The membership of this moment. Raises OSError."""
    with open(roster_path()) as file:
        return validate.roster(file.read())


def this_node(roster: Roster) -> Optional[Node]:
    """The node with an address of this machine: one that can be bound here."""
    return next((node for node in roster.nodes if _is_here(node.address)), None)


def _is_here(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def successor_of(instance_id: str) -> str:
    """The instance that this node is, when it is another one than the one asked for; "" where that is not known."""
    try:
        node = this_node(read_roster())
    except FileNotFoundError:
        return ""
    return node.instance_id if node and node.instance_id != instance_id else ""


class Patience:
    """Which nodes of an attempt are worth another try before any process of it was started."""

    def __init__(self, roster: Roster, can_dial_again: bool = True) -> None:
        self._can_dial_again = can_dial_again
        self._ids = {node.name: node.instance_id for node in roster.nodes}
        self._due_at: Dict[str, float] = {}

    def has_for(self, node: str) -> bool:
        """The node can't be reached: shall it be tried again? Not when the roster has given it up, or is long known."""
        found = read_roster().find(node)
        is_fresh = time.time() - os.stat(roster_path()).st_mtime < _SETTLES_WITHIN_S
        if not self._can_dial_again or not is_fresh or found is None or found.instance_id != self._ids[node]:
            return False
        self._due_at[node] = time.monotonic() + _AGAIN_AFTER_S
        return True

    def due(self) -> List[str]:
        """Nodes to try now; each is named once."""
        nodes = [node for node, at in self._due_at.items() if at <= time.monotonic()]
        for node in nodes:
            del self._due_at[node]
        return nodes
