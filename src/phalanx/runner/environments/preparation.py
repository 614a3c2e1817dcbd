"""Finds or makes a job's environment before its first attempt, in a process of its own, which a stop ends."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from typing import TYPE_CHECKING

from phalanx.runner import checked
from phalanx.runner.environments.environment import RESULT, is_complete, job_variables, lock
from phalanx.runner.files.job_status import JobState, NodeVerdict
from phalanx.runner.head.aside import Aside
from phalanx.runner.head.run_context import RunContext
from phalanx.runner.names import RUNNER
from phalanx.runner.reaper import Sweep
from phalanx.runner.starter.scratch import Scratch
from phalanx.runner.system import MARK, signal_name

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional

    from phalanx.runner.files.job_record import JobRecord

# Compiling a large package takes minutes; a build that takes longer than this hangs.
_TIMEOUT_S = 7200.0
_REPORT_AFTER_S = 1.0
_REPORT_EVERY_S = 5.0
_LOOK_EVERY_S = 0.2
_DRAIN_S = 2.0
_TAIL_LINES = 20
_FAILED = 1
LABEL = "environment"


class Preparation:
    """Prepares the environment with `run`; afterwards `path` is its place."""

    def __init__(self, context: RunContext, directory: str, job: JobRecord, node: str) -> None:
        self.path = ""
        self._context = context
        self._directory = directory
        self._job = job
        self._name = job.environment.name if job.environment else ""
        self._node = node
        self._aside: Aside
        self._lock: Optional[int] = None  # held until the runner ends, so that nobody deletes what its job uses

    def run(self, report: Callable[[str], None]) -> Optional[Dict[str, Any]]:
        """Return None when the environment is ready, else how the job ended. Call `report` with the progress."""
        self._scratch = Scratch(self._job.id)
        while True:
            self._aside = self._started()
            problem = self._wait(report)
            if problem or self._context.stop_requested:
                return self._over(problem)
            self._context.output.ended(self._aside.number, 0)
            result = self._result()
            self.path = result["path"]
            if not result["kept"]:
                return None
            self._lock = lock(result["kept"], fcntl.LOCK_SH)
            if self._lock is not None and is_complete(result["kept"]):
                return None
            # It was removed, or is being made again, since the process ended: repeat.

    def variables(self) -> Dict[str, str]:
        """Return what the environment sets for its jobs."""
        return job_variables(self._job.environment, self._directory) if self._job.environment else {}

    def _started(self) -> Aside:
        argv = checked.argv(os.path.join(self._directory, RUNNER), "environment", self._directory)
        # Without the job's own variables: all that affects a build must be part of the environment's hash.
        env = {**os.environ, **self._job.secrets, MARK: self._job.id}
        aside = Aside(self._context, LABEL, self._node, argv, env)
        aside.close_stdin()
        return aside

    def _wait(self, report: Callable[[str], None]) -> str:
        """Wait until the process ends or a stop is requested; return what failed."""
        began = time.monotonic()
        report_at = began + _REPORT_AFTER_S
        while self._aside.code is None and not self._context.stop_requested:
            elapsed_s = time.monotonic() - began
            if elapsed_s > _TIMEOUT_S:
                return f"not made within {_TIMEOUT_S:g} s"
            if time.monotonic() >= report_at:
                report(f"making environment {self._name} ({elapsed_s:.0f} s)")
                report_at += _REPORT_EVERY_S
            self._aside.turn(_LOOK_EVERY_S)
        if self._aside.code is not None:
            self._aside.drain(_DRAIN_S)
        return self._problem() if self._aside.code else ""

    def _problem(self) -> str:
        code = self._aside.code or 0
        if code < 0:
            return f"the process that makes it was ended by {signal_name(-code)}"
        return self._result().get("problem", f"the process that makes it ended with exit code {code}")

    def _result(self) -> Dict[str, Any]:
        try:
            with open(os.path.join(self._directory, RESULT)) as file:
                return json.load(file)
        except FileNotFoundError:
            return {}

    def _over(self, problem: str) -> Dict[str, Any]:
        """End what is left of the process; return how the job ended."""
        nodes = (NodeVerdict.of(self._node, self._sweep()),)
        code = self._aside.code
        self._context.output.ended(self._aside.number, code if code is not None else -signal.SIGTERM)
        self._context.publish()
        if not problem:
            return {"state": JobState.STOPPED, "message": "stopped on request", "nodes": nodes}
        return {
            "state": JobState.FAILED,
            "message": f"environment {self._name} can't be made: {problem}",
            "exit_code": _FAILED,
            "tail": tuple(self._context.output.tail(self._aside.number, _TAIL_LINES)),
            "nodes": nodes,
        }

    def _sweep(self) -> Dict[str, Any]:
        sweep = Sweep(self._job.id, self._aside.pid)
        while (report := sweep.step()) is None:
            self._aside.turn(0.02)
        # A recipe's check may have started an engine, and no agent has given that a /dev/shm of its own.
        self._scratch.remove()
        return report
