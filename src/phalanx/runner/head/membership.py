"""The present membership, and how long a job waits for a member that refuses logins."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

from phalanx.node import validate
from phalanx.runner.system import ENVIRONMENT, roster_path

if TYPE_CHECKING:
    from typing import Dict, FrozenSet, List, Optional

    from phalanx.node.roster import Node, Roster
    from phalanx.runner.process import PreparedJob

# The roster names a node some seconds before that node's sshd trusts the cluster, and every sshd refuses connections
# for a moment when it reads its new certificate. For this long after a change, a node that refuses is tried again.
_SETTLES_WITHIN_S = 30.0
_RETRY_AFTER_S = 0.5
# What the agent writes beside the roster (node.contract).
_HUNG = "hung"


# From a node's start to its answer to the checks; the second one includes a copy of the code or the environment.
ANSWER_WITHIN_S = 60.0
_PLACED_WITHIN_S = 1800.0


def answer_within_s(job: PreparedJob) -> float:
    """Return how long an attempt waits for every node's checks. A node without beats is given up long before."""
    return _PLACED_WITHIN_S if job.sync_dir or ENVIRONMENT in job.env else ANSWER_WITHIN_S


def read_roster() -> Roster:
    """Return the present membership. Raises OSError."""
    with open(roster_path()) as file:
        return validate.roster(file.read())


def read_hung() -> FrozenSet[str]:
    """Return the names of the nodes whose shared directory does not answer, as the head's agent knows them."""
    try:
        with open(os.path.join(os.path.dirname(roster_path()), _HUNG)) as file:
            return frozenset(file.read().split())
    except FileNotFoundError:
        return frozenset()


def this_node(roster: Roster) -> Optional[Node]:
    """Return the node with an address of this machine, which is one that can be bound here."""
    return next((node for node in roster.nodes if _is_here(node.address)), None)


def _is_here(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def successor_of(instance_id: str) -> str:
    """Return this node's instance if it is not the given one; "" if it is, or is unknown."""
    try:
        node = this_node(read_roster())
    except FileNotFoundError:
        return ""
    return node.instance_id if node and node.instance_id != instance_id else ""


class Standing:
    """Knows which nodes are silent or leaving, by instance; reads the present roster only when it has changed.

    `hung`: the names of the nodes whose shared directory does not answer.
    """

    def __init__(self) -> None:
        self._changed_at_ns: Optional[int] = None
        self.silent: FrozenSet[str] = frozenset()
        self.leaving: Dict[str, str] = {}  # why
        self.hung: FrozenSet[str] = frozenset()

    def look(self) -> None:
        """Bring all up to date. Nothing changes where there is no roster."""
        self.hung = read_hung()
        try:
            changed_at_ns = os.stat(roster_path()).st_mtime_ns
        except FileNotFoundError:
            return
        if changed_at_ns != self._changed_at_ns:
            self._changed_at_ns = changed_at_ns
            roster = read_roster()
            why = {one.name: one.reason for one in roster.leaving}
            self.silent = frozenset(node.instance_id for node in roster.silent)
            self.leaving = {node.instance_id: why[node.name] for node in roster.nodes if node.name in why}


class Patience:
    """Decides which nodes of an attempt are tried again before any process was started."""

    def __init__(self, roster: Roster, can_dial_again: bool = True) -> None:
        self._can_dial_again = can_dial_again
        self._ids = {node.name: node.instance_id for node in roster.nodes}
        self._due_at: Dict[str, float] = {}

    def allows_retry(self, node: str) -> bool:
        """Return whether to try an unreachable node again: not if the roster is old or no longer has the node."""
        found = read_roster().find(node)
        is_fresh = time.time() - os.stat(roster_path()).st_mtime < _SETTLES_WITHIN_S
        if not self._can_dial_again or not is_fresh or found is None or found.instance_id != self._ids[node]:
            return False
        self._due_at[node] = time.monotonic() + _RETRY_AFTER_S
        return True

    def due(self) -> List[str]:
        """Return the nodes to try now, each once."""
        nodes = [node for node, at in self._due_at.items() if at <= time.monotonic()]
        for node in nodes:
            del self._due_at[node]
        return nodes
