"""The table of an attempt's processes: their names, which of them live, and how they ended."""

from __future__ import annotations

import math
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from phalanx.runner.head.verdict import ENDED_BY_ENGINE, ENGINE, KILLED, RANK
from phalanx.runner.system import signal_name

if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Set, Tuple


class Member(NamedTuple):
    """A process that the job has or had. The runner starts main ones itself; engines and their agents start others."""

    label: str
    node: str
    is_rank: bool
    is_main: bool = False
    role: str = ""
    is_service: bool = False

    @property
    def name(self) -> str:
        """The name that is shown before its lines."""
        return f"{self.role} {self.label}".strip()

    @property
    def ranks_name(self) -> str:
        """The name in a sentence."""
        return self.name if self.role or not self.is_rank else f"rank {self.label}"

    def ended_as(self, code: int) -> str:
        """Describe its end; `code` is its exit code, or minus the signal's number."""
        name = self.ranks_name
        if "@" not in name:
            name += f" on {self.node}"
        if code >= 0:
            return f"{name} ended with exit code {code}"
        return f"{name} was ended by {signal_name(-code)}"

    def weight(self, code: int) -> int:
        """Return how much its failure explains."""
        if not self.is_rank:
            return KILLED if code == -signal.SIGKILL else ENGINE
        # An engine that gives up (MPI_Abort) ends its ranks this way; its own exit code then says more.
        return ENDED_BY_ENGINE if code == -signal.SIGTERM and not self.is_main else RANK


class End(NamedTuple):
    """How a process ended: `code` is its exit code, or minus the signal's number.

    `at`: when its node noticed it, by the node's clock; `was_ending`: whether its node had been asked to end its
    processes by then; `oom_kills`: how many processes the node's kernel has killed for lack of memory since the job
    began there.
    """

    code: int
    at: float
    was_ending: bool
    oom_kills: Optional[int] = None

    @property
    def cause(self) -> str:
        """Whether the kernel sent a SIGKILL for lack of memory, as far as that is known; "" for other ends."""
        if self.code != -signal.SIGKILL:
            return ""
        if self.oom_kills is None:
            return " (perhaps out of memory: the kernel's count of kills can't be read there)"
        if not self.oom_kills:
            return " (not by the kernel for lack of memory)"
        killed = f"{self.oom_kills} process" + ("es" if self.oom_kills > 1 else "")
        return f" (out of memory: the kernel there has killed {killed} since the job began)"


class ProcessTable:
    """The processes by their number in the output index; a node's starter may use another number."""

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
        """Add a process that lives from now on; `on_node`: its starter's number for it, where that differs."""
        self._members[number] = member
        self._began_at[number] = self._clock()
        self._numbers[member.node, number if on_node is None else on_node] = number
        self._live.add(number)
        self._live_ranks += member.is_rank
        if member.is_main:
            self._running.add(number)
            self._busy.update(() if member.is_service else (number,))

    def number(self, node: str, on_node: int) -> int:
        """Return a process's number, given the number of its node's starter."""
        return self._numbers[node, on_node]

    def ended(self, number: int) -> Member:
        """Mark a process as ended; return it."""
        member = self._members[number]
        self._live_ranks -= member.is_rank and number in self._live
        for kind in (self._live, self._running, self._busy):
            kind.discard(number)
        return member

    def age_s(self, number: int) -> float:
        """Return how long ago a process was started."""
        return self._clock() - self._began_at[number]

    def live_on(self, node: str) -> List[int]:
        """Return the numbers of the processes that live on a node."""
        return [number for number in self._live if self._members[number].node == node]

    def ended_ranks(self) -> List[str]:
        """Return the names of the ranks that have ended, and that no later process has taken."""
        names = {self._members[number].name for number in self._live}
        ended = (one.name for number, one in self._members.items() if one.is_rank and number not in self._live)
        return [name for name in dict.fromkeys(ended) if name not in names]

    def witness(self, node: str) -> Optional[int]:
        """Return the process whose last lines best explain the end of this node: its first rank."""
        ranks = [number for number in self.live_on(node) if self._members[number].is_rank]
        return min(ranks, default=None)

    def named(self, name: str) -> Optional[int]:
        """Return the number of the newest rank of this name, which may have ended; None if there was none."""
        ranks = (number for number, one in reversed(self._members.items()) if one.is_rank and one.name == name)
        return next(ranks, None)

    def first_rank(self) -> Optional[Tuple[str, int, Member]]:
        """Return the node of the first rank that lives, its number there, and its entry."""
        ranks = [number for number in self._live if self._members[number].is_rank]
        first = min(ranks, key=lambda number: (_as_number(self._members[number].label), number), default=None)
        places = (place for place, number in self._numbers.items() if number == first)
        return next(((*place, self._members[first]) for place in places if first is not None), None)

    @property
    def running(self) -> int:
        """The number of main processes that live."""
        return len(self._running)

    @property
    def has_ranks(self) -> bool:
        """Whether any rank lives."""
        return self._live_ranks > 0

    @property
    def only_services(self) -> bool:
        """Whether only services are left, with no process to serve."""
        return not self._busy


def _as_number(label: str) -> float:
    return int(label) if label.isdigit() else math.inf
