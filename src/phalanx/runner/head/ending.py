"""The end of an attempt: when its processes are asked to end, and what every node reports as left over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.runner.files.job_status import NodeVerdict
from phalanx.runner.reaper import GRACE_S

if TYPE_CHECKING:
    from typing import Dict, List, Mapping

    from phalanx.node.roster import Node
    from phalanx.runner.head.channel import Channel
    from phalanx.runner.head.settle import Inquiry
    from phalanx.runner.process import PreparedJob

# After SIGTERM, an engine without ranks only cleans up, or (mpiexec) waits for the daemon of a node that is gone.
_ENGINE_GRACE_S = 2.0

# The next step.
WAIT = 0
TERMINATE = 1  # send SIGTERM to the processes
GIVE_UP = 2  # stop waiting for them


class Shutdown:
    """Decides when processes are asked to end and how long to wait for them; a pure function of the clock.

    Engines are asked after a moment, in which they may report more, and have 2 s to end; while ranks live, and no node
    is lost, they have the ranks' 5 s.
    """

    def __init__(self) -> None:
        self.deadline = 0.0
        self._is_terminated = False
        self._rank_grace_s = GRACE_S - _ENGINE_GRACE_S

    def begin(self, terminate_at: float) -> None:
        """Begin the shutdown, with TERMINATE at this time."""
        self.deadline = terminate_at

    def step(self, now: float, are_ranks_awaited: bool) -> int:
        """Return what to do now, while some process is left."""
        if now < self.deadline:
            return WAIT
        if not self._is_terminated:
            self._is_terminated = True
            self.deadline = now + _ENGINE_GRACE_S
            return TERMINATE
        if self._rank_grace_s and are_ranks_awaited:
            self.deadline += self._rank_grace_s
            self._rank_grace_s = 0.0
            return WAIT
        return GIVE_UP


class NodeReports:
    """The nodes' reports at the end, from their starters, or from inquiries where a starter sent none."""

    def __init__(self, job: PreparedJob) -> None:
        self._job = job
        self._inquiries: Dict[str, Inquiry] = {}  # node → the inquiry over a new connection

    def inquire(self, node: Node) -> None:
        """Start to ask this node over a new connection."""
        # Here, because `subprocess` takes a sixth of this process's start and only failures need it.
        from phalanx.runner.head.settle import Inquiry

        self._inquiries[node.name] = Inquiry(self._job.directory, self._job.id, node)

    def boot_id(self, node: str) -> str:
        """Return the boot id of a node that has answered an inquiry; "" for every other."""
        return self._inquiries[node].boot_id if node in self._inquiries else ""

    def withdraw(self, node: str) -> None:
        """Drop a node's inquiry: a new starter will report for the node of this name."""
        self._inquiries.pop(node, None)

    def lacks(self, channel: Channel) -> bool:
        """Return whether this channel's node has neither reported nor been asked."""
        return channel.report is None and channel.node not in self._inquiries

    def verdicts(self, channels: Mapping[str, Channel]) -> List[NodeVerdict]:
        """Return every node's verdict, after waiting for missing answers until their deadlines."""
        reports = {name: channel.report for name, channel in channels.items() if channel.report is not None}
        names = [*channels, *(name for name in self._inquiries if name not in channels)]
        return [
            NodeVerdict.of(name, reports[name]) if name in reports else self._inquiries[name].verdict()
            for name in names
        ]
