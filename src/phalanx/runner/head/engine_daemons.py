"""Daemons that engines' agents request: each is held back until its node may be reached, and its end is reported."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NamedTuple

from phalanx.runner.starter.answers import REFUSED, answer

if TYPE_CHECKING:
    from typing import Callable, Dict, List

# Signals that end a process against its will.
_DEATHS = frozenset(getattr(signal, f"SIG{name}") for name in ("KILL", "SEGV", "BUS", "ABRT", "ILL", "FPE"))


def daemon_failure(code: int) -> int:
    """Return minus the signal for a daemon that was killed, else 0: an engine chooses its daemons' exit codes.

    A daemon may run below a shell, which reports a signal as 128 + its number.
    """
    number = -code if code < 0 else code - 128
    return -number if number in _DEATHS else 0


class Request(NamedTuple):
    """A request to run a shell command on a node; `agent` is the pipe for the daemon's exit code."""

    agent: int
    node: str
    command: str


class EngineDaemons:
    """The daemons and their agents. Every agent gets one answer: how its daemon ended, or that there is none."""

    def __init__(self, answer: Callable[[int, int], None] = answer) -> None:
        self._answer = answer
        self._waiting: List[Request] = []
        self._agents: Dict[int, int] = {}  # number of a daemon that runs → its agent

    def __bool__(self) -> bool:
        """Whether any daemon runs."""
        return bool(self._agents)

    def hold(self, request: Request) -> None:
        """Keep a request whose node may not be reached yet."""
        self._waiting.append(request)

    def due(self, may_reach: Callable[[str], bool]) -> List[Request]:
        """Return, once, the held requests whose node may be reached now."""
        due = [request for request in self._waiting if may_reach(request.node)]
        for request in due:
            self._waiting.remove(request)
        return due

    def refuse(self, request: Request) -> None:
        """Answer that there will be no such daemon."""
        self._answer(request.agent, REFUSED)

    def refuse_all(self) -> None:
        """Refuse all held requests."""
        for request in self._waiting:
            self.refuse(request)
        self._waiting.clear()

    def started(self, number: int, agent: int) -> None:
        """Note that the process with this number is a daemon."""
        self._agents[number] = agent

    def ended(self, number: int, code: int) -> bool:
        """Answer the agent of a process that ended. Return whether the process was a daemon."""
        agent = self._agents.pop(number, None)
        if agent is not None:
            self._answer(agent, code)
        return agent is not None
