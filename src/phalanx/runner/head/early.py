"""Lines to a job's nodes, opened while its code is still coming: a login takes as long as a small submission."""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING

from phalanx.runner.liveness import FENCE_S
from phalanx.runner.login import log_in

if TYPE_CHECKING:
    from typing import Dict, Optional, Sequence

    from phalanx.node.roster import Roster
    from phalanx.runner.login import Line
    from phalanx.runner.process import JobDescription, Process

# A starter that was left alone for FENCE_S has given up; large code may well take longer.
_FRESH_S = FENCE_S / 2


class EarlyLines:
    """They pass from process to process by forks: each but the runner closes its own copies.

    A starter whose line is closed on all sides ends; it has nothing yet.
    """

    def __init__(self) -> None:
        self._lines: Dict[str, Line] = {}  # by instance id
        self._opened_at = 0.0

    def open(self, job: JobDescription, processes: Sequence[Process], roster: Roster) -> None:
        """To every node that is to have ranks, as far as is known before all of the job is here."""
        names = {name for process in processes for name in process.ranks}
        self._opened_at = time.monotonic()
        for node in roster.nodes:
            if node.name in names:
                self._lines[node.instance_id] = log_in(job, node)

    def take(self, instance_id: str) -> Optional[Line]:
        """The line to this instance, whose owner the caller is from now on; None when there is none that is good."""
        line = self._lines.pop(instance_id, None)
        if line and (time.monotonic() > self._opened_at + _FRESH_S or _has_ended(line)):
            _close(line)
            return None
        return line

    def close(self) -> None:
        """Those that nobody took."""
        for line in self._lines.values():
            _close(line)
        self._lines.clear()


def _has_ended(line: Line) -> bool:
    """Who refused some time ago may let us in by now."""
    look = select.poll()
    look.register(line.from_fd, 0)
    return bool(look.poll(0))


def _close(line: Line) -> None:
    for fd in line[:3]:
        os.close(fd)
