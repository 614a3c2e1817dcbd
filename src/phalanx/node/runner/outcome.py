"""What a job came to: its first failure, unless one that explains it comes a moment later."""

from __future__ import annotations

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


class Outcome:
    """The verdict while the job goes on; `died` says that it was ended from outside, not by its program.

    `lived_s`: how long the process had lived that failed first; None while none did.
    """

    def __init__(self) -> None:
        self.number: Optional[int] = None
        self.lived_s: Optional[float] = None
        self.died = False
        self._weight = TOLD
        self._record: Dict[str, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._record)

    @property
    def record(self) -> Dict[str, Any]:
        """What goes into the state; success when nothing else was found."""
        return self._record or {"state": states.SUCCEEDED, "exit_code": 0}

    def fail(
        self, message: str, exit_code: int, number: Optional[int], weight: int, lived_s: Optional[float] = None
    ) -> None:
        """The first failure counts, or a later one that weighs more. `number`: whose last lines tell about it."""
        if self._record and (weight <= self._weight or self._record["state"] == states.STOPPED):
            return
        self.number = number
        self.lived_s = lived_s if self.lived_s is None else self.lived_s
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
