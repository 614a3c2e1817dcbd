"""A job's outcome: its first failure, unless one that explains it comes a moment later."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Optional

from phalanx.runner.files.job_status import JobState

if TYPE_CHECKING:
    from phalanx.runner.files.job_record import JobRecord

# How much a failure explains. A rank that its engine ended explains nothing; the engine's exit code says more, and a
# rank that failed by itself more than that. A killed engine explains the ends of its ranks, and a lost node explains
# the failures of its neighbours.
ENDED_BY_ENGINE = 0
ENGINE = 1
RANK = 2
KILLED = 3
NODE = 4

TIMED_OUT = 124
"""The exit code of a job that was ended because of its time limit, or because it stood still; as that of timeout(1)."""

# Two reports of one moment arrive within this; a node with a wrong clock misleads by no more.
_MOMENT_S = 1.0


def over_time(job: JobRecord) -> str:
    """Return the message of a job whose time is over."""
    return f"it reached its time limit of {job.time_s} s"


class Life(NamedTuple):
    """How long a failed process had lived, and when it ended, by its node's clock."""

    lived_s: float
    ended_at: float


class Outcome:
    """The outcome so far; `died`: whether the attempt was ended from outside, not by its program.

    `lived_s`: how long the first failed process had lived; None while none has failed.
    `doubts`: what is not known of a success, by node.
    """

    def __init__(self) -> None:
        self.number: Optional[int] = None
        self.lived_s: Optional[float] = None
        self.died = False
        self._weight = ENDED_BY_ENGINE
        self._at = 0.0
        self._lived_at = math.inf
        self._record: Dict[str, Any] = {}
        self.doubts: Dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._record)

    @property
    def record(self) -> Dict[str, Any]:
        """The changes to the job's state; success when no failure was found, perhaps with doubts."""
        doubts = (
            {"message": "; ".join(f"{node}: {doubt}" for node, doubt in self.doubts.items())} if self.doubts else {}
        )
        return self._record or {"state": JobState.SUCCEEDED, "exit_code": 0, **doubts}

    def fail(
        self, message: str, exit_code: int, number: Optional[int], weight: int, life: Optional[Life] = None
    ) -> None:
        """Note a failure. The first one counts, or one with more weight. `number`: the process that explains it.

        The nodes' clocks decide which one was first: of two nodes, either may be received first.
        """
        now = time.time()
        at = min(now, max(now - _MOMENT_S, life.ended_at)) if life else now
        if life and at < self._lived_at:
            self.lived_s, self._lived_at = life.lived_s, at
        if self._record and not self._yields_to(weight, at):
            return
        self.number = number
        self.died = weight == NODE
        self._weight, self._at = weight, at
        self._record = {"state": JobState.FAILED, "message": message, "exit_code": exit_code}

    def _yields_to(self, weight: int, at: float) -> bool:
        return self._record["state"] == JobState.FAILED and (weight, -at) > (self._weight, -self._at)

    def stop(self) -> None:
        """Note the user's request to stop; an earlier failure stays."""
        self._record = self._record or {"state": JobState.STOPPED, "message": "stopped on request"}

    def time_out(self, message: str) -> None:
        """Note that the job's time is over, whatever its processes do from now on; an earlier end stays."""
        self._record = self._record or {"state": JobState.TIMED_OUT, "message": message, "exit_code": TIMED_OUT}

    def explain(self, message: str, died: bool) -> None:
        """Replace the message by a better explanation from outside."""
        self._record["message"] = message
        self.died = died

    def forgive(self) -> None:
        """Forget a failure that the job survived."""
        if self._record.get("state") == JobState.FAILED:
            self.__init__()
