"""The process that keeps a job's checkpoints in S3, as the runner sees it: from before the first attempt to the end."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

from phalanx.runner import checked
from phalanx.runner.files.job_status import JobState
from phalanx.runner.head.aside import Aside
from phalanx.runner.names import COPIER_STATUS, RUNNER

if TYPE_CHECKING:
    from typing import Any, Callable, Dict

    from phalanx.runner.files.job_record import Mirror
    from phalanx.runner.head.run_context import RunContext

LABEL = "checkpoints"
# Hundreds of GB take this long.
_WITHIN_S = 7200.0
_LOOK_EVERY_S = 0.1
_DRAIN_S = 2.0
_FAILED = 1


class CheckpointCopy:
    """`begin` brings the newest copy, the process then makes others by itself, and `end` makes the last one."""

    def __init__(self, context: RunContext, directory: str, place: Mirror, head: str) -> None:
        self._context = context
        self._is_cut = False
        self._status = os.path.join(directory, COPIER_STATUS)
        self._place = place
        self.url = f"s3://{place.bucket}/{place.prefix}"
        if os.path.exists(self._status):
            os.unlink(self._status)  # of a runner that died
        argv = checked.argv(os.path.join(directory, RUNNER), "copier", directory)
        self._aside = Aside(context, LABEL, head, argv, os.environ)

    def begin(self, report: Callable[[str], None]) -> Dict[str, Any]:
        """Wait until the directory is there. Return how the job ended instead, if it did."""
        report(f"bringing checkpoints from {self.url}")
        self._wait(lambda: "ready" in self._told() or self._context.stop_requested)
        if "over" not in self._told() and "ready" in self._told():
            return {}
        if self._context.stop_requested and not self._aside.has_closed:
            self._over()
            return {"state": JobState.STOPPED, "message": "stopped on request"}
        problem = f"--checkpoint {self.url}: {self._problem()}"
        self._over()
        return {"state": JobState.FAILED, "message": problem, "exit_code": _FAILED}

    def end(self, outcome: Dict[str, Any], report: Callable[[str], None]) -> Dict[str, Any]:
        """Make the last copy, which another stop cuts short.

        Return the outcome; a job whose checkpoints are not in S3 has not succeeded.
        """
        report(f"copying checkpoints to {self.url}; `phalanx stop` now cuts that short")
        self._aside.close_stdin()
        stops = self._context.stops
        self._wait(lambda: self._context.stops > stops)
        self._is_cut = self._context.stops > stops
        problem = self._problem()
        self._over()
        if not problem:
            return outcome
        message = f"its checkpoints are not in {self.url}: {problem}; they are in {self._place.home}/files"
        if outcome["state"] == JobState.SUCCEEDED:
            return {**outcome, "state": JobState.FAILED, "message": message, "exit_code": _FAILED}
        return {**outcome, "message": f"{outcome.get('message', '')} ({message})".strip()}

    def _wait(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _WITHIN_S
        while not self._aside.has_closed and not is_done() and time.monotonic() < deadline:
            self._aside.turn(_LOOK_EVERY_S)

    def _problem(self) -> str:
        told = self._told()
        if "over" in told:
            return str(told["problem"])
        if self._aside.has_closed:
            return "the process that copies them was killed"
        return "stopped on request" if self._is_cut else f"not within {_WITHIN_S:g} s"

    def _over(self) -> None:
        """End the process, if it lives."""
        if not self._aside.has_closed:
            os.kill(self._aside.pid, signal.SIGKILL)
            self._aside.drain(_DRAIN_S)
        self._context.output.ended(self._aside.number, self._aside.code or 0)
        self._context.publish()

    def _told(self) -> Dict[str, Any]:
        """Return what the process has written, which a job can have changed."""
        try:
            with open(self._status, encoding="utf-8") as file:
                told = json.load(file)
            return told if isinstance(told, dict) else {}
        except (OSError, ValueError):
            return {}
