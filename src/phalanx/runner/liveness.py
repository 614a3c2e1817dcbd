"""Heartbeats between a job's runner and its starters: how often, and how long a silence means death."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

BEAT_EVERY_S = 2.0
# The runner gives a node up after this; winding the job down must still fit into 15 s after the node's death.
SILENT_S = 9.0
LOOK_EVERY_S = 1.0
# A starter that hears nothing of the runner for so long ends all that it has.
FENCE_S = 30.0

# Looks come at least every BEAT_EVERY_S. A longer gap means that this process itself did not run (a suspended machine,
# a stalled disk), and while it did not run it could not hear.
_LONGEST_LOOK_S = BEAT_EVERY_S + 1.0


class Contact:
    """How long the other end has been silent, as far as this process was there to hear it.

    Any bytes are a sign of life, so that a beat never has to pass output that waits.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at = clock()
        self._silent_s = 0.0

    def heard(self) -> None:
        """Something came."""
        self._looked_at = self._clock()
        self._silent_s = 0.0

    def look(self) -> float:
        """Seconds of silence; to be called after everything that had come was read."""
        now = self._clock()
        self._silent_s += min(now - self._looked_at, _LONGEST_LOOK_S)
        self._looked_at = now
        return self._silent_s


class Pace:
    """Says when the next beat is due."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_at = clock() + BEAT_EVERY_S

    def is_due(self) -> bool:
        """True once in every BEAT_EVERY_S."""
        if self._clock() < self._due_at:
            return False
        self._due_at = self._clock() + BEAT_EVERY_S
        return True
