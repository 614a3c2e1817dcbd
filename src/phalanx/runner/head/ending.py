"""The end of an attempt: when its processes are asked to end, and what every node reports of the job's remains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.runner.files import state as states
from phalanx.runner.reaper import GRACE_S

if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping

    from phalanx.node.roster import Node
    from phalanx.runner.head.channel import Channel
    from phalanx.runner.head.settle import Inquiry
    from phalanx.runner.process import JobDescription

# Told to end, an engine without ranks only tidies up, or (mpiexec) waits for the daemon of a node that is gone.
_ENGINE_GRACE_S = 2.0

# What is to be done next.
WAIT = 0
TERMINATE = 1  # tell the processes to end
GIVE_UP = 2  # no more is to be hoped of them


class WindDown:
    """Says when processes are told to end and how long they are waited for; a pure function of the clock.

    Engines are told (after a moment, in which they may say more) and have 2 s to end; while ranks live, and every node
    is there, they have the ranks' 5 s.
    """

    def __init__(self) -> None:
        self.deadline = 0.0
        self._told = False
        self._rank_grace_s = GRACE_S - _ENGINE_GRACE_S

    def begin(self, tell_at: float) -> None:
        """They are to end, and are told so then."""
        self.deadline = tell_at

    def step(self, now: float, are_ranks_awaited: bool) -> int:
        """What is to be done at this moment, with something still there."""
        if now < self.deadline:
            return WAIT
        if not self._told:
            self._told = True
            self.deadline = now + _ENGINE_GRACE_S
            return TERMINATE
        if self._rank_grace_s and are_ranks_awaited:
            self.deadline += self._rank_grace_s
            self._rank_grace_s = 0.0
            return WAIT
        return GIVE_UP


class Proof:
    """What nodes say in the end: by their starters' reports, and where there is none, when asked once more."""

    def __init__(self, job: JobDescription) -> None:
        self._job = job
        self._inquiries: Dict[str, Inquiry] = {}  # node → what it is asked over a new connection

    def inquire(self, node: Node) -> None:
        """Ask this node, from now on, over a new connection."""
        # Here, because `subprocess` is a sixth of this process's start and only trouble needs it.
        from phalanx.runner.head.settle import Inquiry

        self._inquiries[node.name] = Inquiry(self._job.directory, self._job.id, node)

    def boot_id(self, node: str) -> str:
        """The boot of the node that was asked over a new connection and has answered; "" of every other."""
        return self._inquiries[node].boot_id if node in self._inquiries else ""

    def withdraw(self, node: str) -> None:
        """A new starter will report for what has this name now."""
        self._inquiries.pop(node, None)

    def lacks(self, channel: Channel) -> bool:
        """Has this channel's node said nothing, and was it not asked?"""
        return channel.report is None and channel.node not in self._inquiries

    def verdicts(self, channels: Mapping[str, Channel]) -> List[Dict[str, Any]]:
        """Every node's line in the state; waits for the answers that are still missing, until their deadlines."""
        reports = {name: channel.report for name, channel in channels.items() if channel.report is not None}
        names = [*channels, *(name for name in self._inquiries if name not in channels)]
        return [
            states.verdict(name, reports[name]) if name in reports else self._inquiries[name].verdict()
            for name in names
        ]
