"""Start the nodes of a stopped cluster again: its lease had ended, its budget was spent, or nobody used it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from phalanx.aws.model import Running, StackState
from phalanx.cluster.stack import Deadline, NodeAnswered, NodeMissing, are_proven, read_roster
from phalanx.errors import CloudError, ClusterError
from phalanx.node.roster import COMING, Roster

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

# Beyond the time that a node may take: two machines are launched one after the other if the first head fails.
_MORE_S = 10 * 60.0


def require_living(name: str, running: Running | None) -> Running | None:
    """Return `running`. Raise ClusterError for a cluster that its service has ended for good."""
    if running is not None and running.ended:
        raise ClusterError(
            f"cluster {name} has no nodes: {running.ended}",
            "`phalanx down --keep yes` keeps data in EFS, and `phalanx up` makes the cluster again with them. "
            "A shared directory on the head's own disk (`storage: head`) is lost.",
        )
    return running


class Resumption:
    """A cluster whose nodes start. Iterate `steps()`, which ends when the new head has all nodes, or a reason."""

    def __init__(self, cloud: Aws, state: StackState) -> None:
        self._cloud, self._state = cloud, state
        self._table = state.outputs["RosterTable"]
        self._before = self._read()
        self._seen: set[str] = set()

    @property
    def nodes(self) -> int:
        """How many nodes are requested, the head included."""
        return self._before.requested

    @property
    def gpus(self) -> int:
        """How many GPUs each node has."""
        return max(node.gpus for node in self._before.nodes)

    def steps(self) -> Iterator[NodeAnswered | NodeMissing]:
        """Yield nodes as they answer. Raises CloudError at the deadline."""
        node_timeout_s = float(self._state.parameters["NodeTimeout"])
        deadline = Deadline.after(node_timeout_s + _MORE_S, f"the nodes of {self._state.name} to start")
        self._cloud.machines.start_nodes(self._state.name, self._before.requested - 1)
        while True:
            roster = self._read()
            if roster.head.instance_id != self._before.head.instance_id:
                yield from self._new(roster)
                is_coming = any(missing.reason == COMING for missing in roster.missing)
                if not is_coming and are_proven(self._cloud, self._table, roster):
                    return
            deadline.check(f"generation {roster.generation}, {len(roster.nodes)} of {roster.requested} nodes")
            time.sleep(self._cloud.poll_interval_s)

    def _new(self, roster: Roster) -> Iterator[NodeAnswered | NodeMissing]:
        for position, node in enumerate(roster.nodes, 1):
            if self._is_new(node.instance_id):
                yield NodeAnswered(node.name, node.address, position, roster.requested)
        for missing in roster.missing:
            if missing.reason != COMING and self._is_new(missing.name):
                yield NodeMissing(missing.name, missing.reason)

    def _is_new(self, name: str) -> bool:
        new = name not in self._seen
        self._seen.add(name)
        return new

    def _read(self) -> Roster:
        roster = read_roster(self._cloud, self._table)
        if roster is None:
            raise CloudError(
                f"the roster of cluster {self._state.name} is empty", "Run `phalanx down`, then `phalanx up`."
            )
        return roster
