"""What a job came to: its first failure, unless one that explains it comes a moment later."""

from __future__ import annotations

import math
import time
from typing import Any, Dict, NamedTuple, Optional

from phalanx.runner.files import state as states

# How much a failure explains. A rank that an engine ended knows nothing; an engine's exit code says more, a rank that
# failed by itself more than that. An engine that was killed took its ranks with it; and a node that is gone explains
# all that its neighbours complain about.
TOLD = 0
ENGINE = 1
RANK = 2
KILLED = 3
NODE = 4

# Two reports of one moment come within this; a node whose clock is wrong misleads by no more.
_MOMENT_S = 1.0


class Life(NamedTuple):
    """Of a process that failed: how long it had lived, and when it ended, by its node's clock."""

    lived_s: float
    ended_at: float


class Outcome:
    """The verdict while the job goes on; `died` says that it was ended from outside, not by its program.

    `lived_s`: how long the process had lived that failed first; None while none did.
    """

    def __init__(self) -> None:
        self.number: Optional[int] = None
        self.lived_s: Optional[float] = None
        self.died = False
        self._weight = TOLD
        self._at = 0.0
        self._lived_at = math.inf
        self._record: Dict[str, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._record)

    @property
    def record(self) -> Dict[str, Any]:
        """What goes into the state; success when nothing else was found."""
        return self._record or {"state": states.SUCCEEDED, "exit_code": 0}

    def fail(
        self, message: str, exit_code: int, number: Optional[int], weight: int, life: Optional[Life] = None
    ) -> None:
        """The first failure counts, or one that weighs more. `number`: whose last lines tell about it.

        Which one was first say the nodes' clocks: of two nodes, either may be heard first.
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
        self._record = {"state": states.FAILED, "message": message, "exit_code": exit_code}

    def _yields_to(self, weight: int, at: float) -> bool:
        return self._record["state"] != states.STOPPED and (weight, -at) > (self._weight, -self._at)

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
