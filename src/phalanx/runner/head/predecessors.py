"""The jobs whose end another job waits for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from phalanx.counts import first_of
from phalanx.node.validate import Invalid
from phalanx.runner.files import state as states
from phalanx.runner.files.job_status import JobState
from phalanx.runner.head.settle import Orphans, is_foreign, is_orphan, left_alone

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional

    from phalanx.runner.files.job_record import JobRecord
    from phalanx.runner.files.job_status import JobStatus
    from phalanx.runner.head.run_context import RunContext

_REFUSED = 2
_LOOK_EVERY_S = 0.5


class Predecessors:
    """The jobs named by `--after` and `--after-any`; `root` is the directory of all jobs."""

    def __init__(self, root: str, job: JobRecord) -> None:
        self._root, self._stack = root, job.stack
        self._must_succeed = job.after
        self._left = [*dict.fromkeys((*job.after, *job.after_any))]
        self._ends: Dict[str, Optional[JobStatus]] = {}  # None: it was removed
        self._orphans = Orphans()

    @property
    def awaited(self) -> str:
        """The jobs that have not ended, in words."""
        return ("jobs " if len(self._left) > 1 else "job ") + first_of(self._left, most=3)

    @property
    def obstacle(self) -> str:
        """Why the job can't begin; "" if nothing is known yet."""
        for job_id in self._must_succeed:
            status = self._ends.get(job_id)
            if job_id in self._ends and (status is None or status.state is not JobState.SUCCEEDED):
                how = f"ended as '{status.state.value}'" if status else "was removed"
                return f"job {job_id} {how}, and this one was to begin after its success"
        return ""

    def are_over(self) -> bool:
        """Look at the jobs. Return whether all have ended, or there is an obstacle."""
        self._left = [job_id for job_id in self._left if not self._is_over(job_id)]
        return not self._left or bool(self.obstacle)

    def wait(self, context: RunContext, report: Callable[[str], None]) -> Dict[str, Any]:
        """Wait until the job may begin. Return how it ended, if it was stopped or can't begin."""
        while not (self.are_over() or context.stop_requested):
            report(self.awaited)
            context.loop.turn(_LOOK_EVERY_S)
        if context.stop_requested:
            return {"state": JobState.STOPPED, "message": f"stopped on request while waiting for {self.awaited}"}
        if self.obstacle:
            return {"state": JobState.FAILED, "message": self.obstacle, "exit_code": _REFUSED}
        return {}

    def _is_over(self, job_id: str) -> bool:
        directory = os.path.join(self._root, job_id)
        try:
            status = states.read(directory)
        except (FileNotFoundError, NotADirectoryError):
            self._ends[job_id] = None
            return True
        except Invalid as error:
            status = states.damaged(directory, error)
        except OSError:  # the shared directory does not answer
            return False
        if is_foreign(status, self._stack):
            status = left_alone(status)
        elif is_orphan(status):
            # It is restarted if it may be, or found lost; this takes seconds.
            self._orphans.settle(directory, status.runner)
            return False
        if status.state.final:
            self._ends[job_id] = status
        return status.state.final
