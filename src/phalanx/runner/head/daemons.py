"""Daemons that engines' agents ask for: held back until their node may be reached; its agent hears of its end."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NamedTuple

from phalanx.runner.starter.answers import REFUSED, answer

if TYPE_CHECKING:
    from typing import Callable, Dict, List

# What ends a process that did not want to end.
_DEATHS = frozenset(getattr(signal, f"SIG{name}") for name in ("KILL", "SEGV", "BUS", "ABRT", "ILL", "FPE"))


def daemon_failure(code: int) -> int:
    """How an engine exits its daemons is its own affair: 0. That one was killed is not: minus the signal.

    A daemon may stand behind a shell, which tells of a signal as 128 + its number.
    """
    number = -code if code < 0 else code - 128
    return -number if number in _DEATHS else 0


class Request(NamedTuple):
    """An agent (the pipe on which it hears how its daemon ended) wants this command of a shell's on a node."""

    agent: int
    node: str
    command: str


class Daemons:
    """Every agent gets one answer: how its daemon ended, or that there is none."""

    def __init__(self, tell: Callable[[int, int], None] = answer) -> None:
        self._tell = tell
        self._waiting: List[Request] = []
        self._agents: Dict[int, int] = {}  # number of a daemon that runs → its agent

    def __bool__(self) -> bool:
        """Does any of them run?"""
        return bool(self._agents)

    def hold(self, request: Request) -> None:
        """Its node may not be reached yet."""
        self._waiting.append(request)

    def due(self, may_reach: Callable[[str], bool]) -> List[Request]:
        """Those that waited for a node that may be reached now; each is given out once."""
        due = [request for request in self._waiting if may_reach(request.node)]
        for request in due:
            self._waiting.remove(request)
        return due

    def refuse(self, request: Request) -> None:
        """There will be no such daemon."""
        self._tell(request.agent, REFUSED)

    def refuse_all(self) -> None:
        """Nothing is started any more for those that wait."""
        for request in self._waiting:
            self.refuse(request)
        self._waiting.clear()

    def started(self, number: int, agent: int) -> None:
        """The process of this number is a daemon."""
        self._agents[number] = agent

    def ended(self, number: int, code: int) -> bool:
        """The process has ended so. Was it a daemon, whose agent has been told?"""
        agent = self._agents.pop(number, None)
        if agent is not None:
            self._tell(agent, code)
        return agent is not None
