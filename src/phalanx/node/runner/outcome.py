"""What a job came to: its first failure, unless one that explains it comes a moment later."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any, Dict, Optional

from phalanx.node.runner import state as states

# How much a failure explains. A rank that an engine ended knows nothing; an engine's exit code says more, a rank that
# failed by itself more than that. An engine that was killed took its ranks with it; and a node that is gone explains
# all that its neighbours complain about.
TOLD = 0
ENGINE = 1
RANK = 2
KILLED = 3
NODE = 4

# What ends a process that did not want to end.
_DEATHS = frozenset(getattr(signal, f"SIG{name}") for name in ("KILL", "SEGV", "BUS", "ABRT", "ILL", "FPE"))


def daemon_failure(code: int) -> int:
    """How an engine exits its daemons is its own affair: 0. That one was killed is not: minus the signal.

    A daemon may stand behind a shell, which tells of a signal as 128 + its number.
    """
    number = -code if code < 0 else code - 128
    return -number if number in _DEATHS else 0


@dataclass(frozen=True)
class Member:
    """A process that the job has or had, by its number in the output index."""

    label: str
    node: str
    is_rank: bool
    is_main: bool = False
    role: str = ""

    @property
    def name(self) -> str:
        """As it is shown before its lines."""
        return f"{self.role} {self.label}".strip()

    def ended_as(self, code: int) -> str:
        name = self.name if self.role or not self.is_rank else f"rank {self.label}"
        if "@" not in name:
            name += f" on {self.node}"
        if code >= 0:
            return f"{name} ended with exit code {code}"
        return f"{name} was ended by {signal.Signals(-code).name}"

    def weight(self, code: int) -> int:
        """How much its failure explains."""
        if not self.is_rank:
            return KILLED if code == -signal.SIGKILL else ENGINE
        # An engine that gives up (MPI_Abort) ends its ranks so; its own exit code then says more.
        return TOLD if code == -signal.SIGTERM and not self.is_main else RANK


class Outcome:
    """The verdict while the job goes on; `died` says that it was ended from outside, not by its program."""

    def __init__(self) -> None:
        self.number: Optional[int] = None
        self.died = False
        self._weight = TOLD
        self._record: Dict[str, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._record)

    @property
    def record(self) -> Dict[str, Any]:
        """What goes into the state; success when nothing else was found."""
        return self._record or {"state": states.SUCCEEDED, "exit_code": 0}

    def fail(self, message: str, exit_code: int, number: Optional[int], weight: int) -> None:
        """The first failure counts, or a later one that weighs more. `number`: whose last lines tell about it."""
        if self._record and (weight <= self._weight or self._record["state"] == states.STOPPED):
            return
        self.number = number
        self.died = weight == NODE
        self._weight = weight
        self._record = {"state": states.FAILED, "message": message, "exit_code": exit_code}

    def stop(self) -> None:
        """The user asked for it; a failure that came first stays."""
        self._record = self._record or {"state": states.STOPPED, "message": "stopped on request"}

    def explain(self, message: str, died: bool) -> None:
        """Somebody outside knows better why it failed."""
        self._record["message"] = message
        self.died = died

    def forgive(self) -> None:
        """The job went on in spite of it."""
        if self._record.get("state") == states.FAILED:
            self.__init__()
