"""Heartbeats between a job's runner and its starters: how often they come, and after what silence a peer is lost."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

BEAT_EVERY_S = 2.0
# The runner gives up a node after this; winding the job down must still fit into 15 s after the node's death.
SILENT_S = 9.0
LOOK_EVERY_S = 1.0
# A starter that hears nothing from the runner for this long ends all its processes.
FENCE_S = 30.0

# `update` is called at least every BEAT_EVERY_S. A longer gap means that this process itself did not run (a suspended
# machine, a stalled disk), and could not receive anything.
_LONGEST_GAP_S = BEAT_EVERY_S + 1.0


class Contact:
    """Measures how long the other end has been silent while this process was running.

    Any bytes are a sign of life, so that a beat never has to overtake waiting output.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._updated_at = clock()
        self._silent_s = 0.0

    def heard(self) -> None:
        """Note that something was received."""
        self._updated_at = self._clock()
        self._silent_s = 0.0

    def update(self) -> float:
        """Return the seconds of silence. Call it after reading everything that has arrived."""
        now = self._clock()
        self._silent_s += min(now - self._updated_at, _LONGEST_GAP_S)
        self._updated_at = now
        return self._silent_s


class Pace:
    """Decides when the next beat is due."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_at = clock() + BEAT_EVERY_S

    def is_due(self) -> bool:
        """Return True once in every BEAT_EVERY_S."""
        if self._clock() < self._due_at:
            return False
        self._due_at = self._clock() + BEAT_EVERY_S
        return True
