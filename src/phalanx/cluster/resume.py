"""Start the nodes of a stopped cluster again: its lease had ended, its budget was spent, or nobody used it."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING

from phalanx.aws.model import StackState
from phalanx.cluster.spending import limits_now
from phalanx.cluster.stack import (
    Deadline,
    NodeAnswered,
    NodeMissing,
    Note,
    are_proven,
    news_of,
    read_roster,
    require_roster,
)
from phalanx.node.roster import COMING, Roster
from phalanx.plan.plan import known_sizes
from phalanx.spec.spec import ClusterSpec

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws
    from phalanx.cluster.update import Settings

# Beyond the time that a node may take: two machines are launched one after the other if the first head fails.
_MORE_S = 10 * 60.0
_LIMITS = ("lease_s", "budget")


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
        self._cloud.machines.start_nodes(self._state.name, self._before.requested)
        while True:
            roster = self._read()
            if roster.head.instance_id != self._before.head.instance_id:
                yield from news_of(roster, self._seen)
                is_coming = any(missing.reason == COMING for missing in roster.missing)
                if not is_coming and are_proven(self._cloud, self._table, roster):
                    return
            deadline.check(f"{len(roster.nodes)} of {roster.requested} nodes answer")
            time.sleep(self._cloud.poll_interval_s)

    def _read(self) -> Roster:
        return require_roster(self._cloud, self._table, self._state.name)


def start_again(cloud: Aws, found: StackState, spec: ClusterSpec) -> Iterator[Note | NodeAnswered | NodeMissing]:
    """Start the nodes of a stack that has none, with a new lease."""
    yield Note(f"cluster {found.name} had stopped its nodes; starting them again")
    resumption = Resumption(cloud, found)
    limits = limits_now(cloud, found, spec, resumption.gpus, resumption.nodes)
    if limits.lease_s:
        cloud.machines.end_at(found.name, time.time() + limits.lease_s)
    yield from resumption.steps()


def renew_limits(
    cloud: Aws, found: StackState, spec: ClusterSpec, before: Mapping[str, object], has_new_type: bool
) -> Generator[Note, None, Settings]:
    """Give a running cluster a new lease if the file's lease or budget differs from `before`, counted from now.

    A type with GPUs has a lease by default, so a cluster that gets one for the first time gets a lease, too. Returns
    the settings that differed.
    """
    is_other = {key: (before.get(key), getattr(spec, key)) for key in _LIMITS if before.get(key) != getattr(spec, key)}
    if not is_other and not (has_new_type and _lacks_lease(cloud, found.name)):
        return {}
    roster = read_roster(cloud, found.outputs["RosterTable"])
    gpus = max((node.gpus for node in roster.nodes), default=0) if roster else 0
    gpus = max(gpus, (known_sizes(spec.type) or {}).get("gpus", 0))
    limits = limits_now(cloud, found, spec, gpus, roster.requested if roster else spec.nodes)
    if not is_other and not limits.lease_s:
        return {}
    end_s = time.time() + limits.lease_s if limits.lease_s else None
    cloud.machines.end_at(found.name, end_s)
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(end_s)) if end_s else "never"
    yield Note(f"the lease or the budget has changed: all nodes stop {when}")
    return is_other


def _lacks_lease(cloud: Aws, name: str) -> bool:
    running = cloud.machines.running(name)
    return running is not None and running.end_s is None
