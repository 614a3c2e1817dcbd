"""The end of an attempt: when its processes are asked to end, and what every node reports as left over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.runner.files.job_status import NodeVerdict
from phalanx.runner.head import settle

if TYPE_CHECKING:
    from typing import Dict, List, Mapping

    from phalanx.node.roster import Node
    from phalanx.runner.head.channel import Channel
    from phalanx.runner.process import PreparedJob

# After SIGTERM, an engine without ranks only cleans up, or (mpiexec) waits for the daemon of a node that is gone.
_ENGINE_GRACE_S = 2.0

# The next step.
WAIT = 0
ASK_RANKS = 1  # send SIGTERM to the ranks
TERMINATE = 2  # send SIGTERM to the engines, and to what else is left
GIVE_UP = 3  # stop waiting for them


class Shutdown:
    """Decides when processes are asked to end and how long to wait for them; a pure function of the clock.

    Ranks are asked first, and have `grace_s` to save what they have. Their engines follow: an engine that is asked at
    the same time kills its ranks within a second.
    """

    def __init__(self, grace_s: float) -> None:
        self.deadline = 0.0
        self._grace_s = grace_s
        self._next = ASK_RANKS

    def begin(self, ask_at: float) -> None:
        """Begin the shutdown, with the first request at this time."""
        self.deadline = ask_at

    def hurry(self, now: float) -> None:
        """Ask the ranks now, if they were to be asked later."""
        if self._next == ASK_RANKS:
            self.deadline = min(self.deadline, now)

    def step(self, now: float, has_ranks: bool) -> int:
        """Return what to do now, while some process is left."""
        are_ranks_gone = self._next == TERMINATE and not has_ranks
        if now < self.deadline and not are_ranks_gone:
            return WAIT
        if self._next == ASK_RANKS and has_ranks:
            self._next, self.deadline = TERMINATE, now + self._grace_s
            return ASK_RANKS
        if self._next != GIVE_UP:
            self._next, self.deadline = GIVE_UP, now + _ENGINE_GRACE_S
            return TERMINATE
        return GIVE_UP


class NodeReports:
    """The nodes' reports at the end, from their starters, or from inquiries where a starter sent none."""

    def __init__(self, job: PreparedJob) -> None:
        self._job = job
        self._inquiries: Dict[str, settle.Inquiry] = {}  # node → the inquiry over a new connection

    def inquire(self, node: Node) -> None:
        """Start to ask this node over a new connection."""
        self._inquiries[node.name] = settle.Inquiry(self._job.directory, self._job.id, node)

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
