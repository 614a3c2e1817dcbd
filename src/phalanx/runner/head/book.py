"""The book of an attempt's processes: who they are, what their ends say, and which of them live."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from phalanx.runner.head.verdict import ENGINE, KILLED, RANK, TOLD
from phalanx.runner.system import signal_name

if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Set, Tuple


class Member(NamedTuple):
    """A process that the job has or had. One that is main was started by itself, not by an engine or its agent."""

    label: str
    node: str
    is_rank: bool
    is_main: bool = False
    role: str = ""
    is_service: bool = False

    @property
    def name(self) -> str:
        """As it is shown before its lines."""
        return f"{self.role} {self.label}".strip()

    def ended_as(self, code: int) -> str:
        """Its end in words; `code` is its exit code, or minus the signal's number."""
        name = self.name if self.role or not self.is_rank else f"rank {self.label}"
        if "@" not in name:
            name += f" on {self.node}"
        if code >= 0:
            return f"{name} ended with exit code {code}"
        return f"{name} was ended by {signal_name(-code)}"

    def weight(self, code: int) -> int:
        """How much its failure explains."""
        if not self.is_rank:
            return KILLED if code == -signal.SIGKILL else ENGINE
        # An engine that gives up (MPI_Abort) ends its ranks so; its own exit code then says more.
        return TOLD if code == -signal.SIGTERM and not self.is_main else RANK


class End(NamedTuple):
    """How a process ended: `code` is its exit code, or minus the signal's number.

    `at`: when its node saw it, by the node's clock; `was_told`: had the node been told to end its processes by then?
    `oom_kills`: how many processes the node's kernel has killed for want of memory since the job began there.
    """

    code: int
    at: float
    was_told: bool
    oom_kills: Optional[int] = None

    @property
    def cause(self) -> str:
        """Of a SIGKILL, whether it was the kernel's for want of memory, as far as that can be known; else ""."""
        if self.code != -signal.SIGKILL:
            return ""
        if self.oom_kills is None:
            return " (perhaps out of memory: what the kernel has killed can't be seen there)"
        if not self.oom_kills:
            return " (not by the kernel for want of memory)"
        killed = f"{self.oom_kills} process" + ("es" if self.oom_kills > 1 else "")
        return f" (out of memory: the kernel there has killed {killed} since the job began)"


class Book:
    """Each has a number in the output index; a node's starter may know it by another."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._members: Dict[int, Member] = {}
        self._numbers: Dict[Tuple[str, int], int] = {}  # node and its starter's number → number
        self._live: Set[int] = set()
        self._running: Set[int] = set()  # those of the live that are main
        self._busy: Set[int] = set()  # those of the running that are no services
        self._live_ranks = 0
        self._began_at: Dict[int, float] = {}

    def __getitem__(self, number: int) -> Member:
        return self._members[number]

    def add(self, number: int, member: Member, on_node: Optional[int] = None) -> None:
        """A process that lives from now on; `on_node`: its starter's number for it, where that is another."""
        self._members[number] = member
        self._began_at[number] = self._clock()
        self._numbers[member.node, number if on_node is None else on_node] = number
        self._live.add(number)
        self._live_ranks += member.is_rank
        if member.is_main:
            self._running.add(number)
            self._busy.update(() if member.is_service else (number,))

    def number(self, node: str, on_node: int) -> int:
        """Its number, from that which the node's starter has for it."""
        return self._numbers[node, on_node]

    def ended(self, number: int) -> Member:
        """It lives no longer; returns who it was."""
        member = self._members[number]
        self._live_ranks -= member.is_rank and number in self._live
        for kind in (self._live, self._running, self._busy):
            kind.discard(number)
        return member

    def age_s(self, number: int) -> float:
        """How long ago it was started."""
        return self._clock() - self._began_at[number]

    def live_on(self, node: str) -> List[int]:
        """Numbers of those that live on a node."""
        return [number for number in self._live if self._members[number].node == node]

    def witness(self, node: str) -> Optional[int]:
        """Whose last lines tell most about the end of this node."""
        ranks = [number for number in self.live_on(node) if self._members[number].is_rank]
        return min(ranks, default=None)

    @property
    def running(self) -> int:
        """How many main processes live."""
        return len(self._running)

    @property
    def has_ranks(self) -> bool:
        """Does any rank live?"""
        return self._live_ranks > 0

    @property
    def only_services(self) -> bool:
        """Is there nobody left for whom services work?"""
        return not self._busy
