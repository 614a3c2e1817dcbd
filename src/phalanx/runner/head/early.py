"""Lines to a job's nodes, opened while its code is still arriving: a login takes as long as a small submission."""

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

# A starter without beats for FENCE_S has given up, and large code may take longer to arrive.
_FRESH_S = FENCE_S / 2


class EarlyLines:
    """The open lines. Forked processes inherit them: each but the runner closes its own copies.

    A starter ends when all copies of its line are closed; it has no processes yet.
    """

    def __init__(self) -> None:
        self._lines: Dict[str, Line] = {}  # by instance id
        self._opened_at = 0.0

    def open(self, job: JobDescription, processes: Sequence[Process], roster: Roster) -> None:
        """Open a line to every node that will have ranks, as far as is known before the whole job is here."""
        names = {name for process in processes for name in process.ranks}
        self._opened_at = time.monotonic()
        for node in roster.nodes:
            if node.name in names:
                self._lines[node.instance_id] = log_in(job, node)

    def take(self, instance_id: str) -> Optional[Line]:
        """Hand the line to this instance over to the caller; None when there is no usable one."""
        line = self._lines.pop(instance_id, None)
        if line and (time.monotonic() > self._opened_at + _FRESH_S or _has_ended(line)):
            _close(line)
            return None
        return line

    def close(self) -> None:
        """Close the lines that were not taken."""
        for line in self._lines.values():
            _close(line)
        self._lines.clear()


def _has_ended(line: Line) -> bool:
    """Return whether the line has closed, as after a refused login, which may succeed now."""
    look = select.poll()
    look.register(line.from_fd, 0)
    return bool(look.poll(0))


def _close(line: Line) -> None:
    for fd in line[:3]:
        os.close(fd)
