"""Finds or makes a job's environment before its first attempt, in a process of its own, which a stop ends."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from typing import TYPE_CHECKING

from phalanx.runner import checked, frames
from phalanx.runner.environments.environment import RESULT, is_complete, lock
from phalanx.runner.files import state as states
from phalanx.runner.head.stage import Stage
from phalanx.runner.loop import READ_BYTES
from phalanx.runner.names import RUNNER
from phalanx.runner.reaper import Sweep
from phalanx.runner.system import MARK, reap, signal_name, spawn

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional

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

    def __init__(self, stage: Stage, directory: str, job: Dict[str, Any], node: str) -> None:
        self.path = ""
        self._stage = stage
        self._directory = directory
        self._job = job
        self._node = node
        self._number = 0
        self._pid = 0
        self._code: Optional[int] = None
        self._streams = 0
        self._lock: Optional[int] = None  # held until the runner ends, so that nobody deletes what its job uses

    def run(self, report: Callable[[str], None]) -> Optional[Dict[str, Any]]:
        """Return None when the environment is ready, else how the job ended. Call `report` with the progress."""
        while True:
            self._start()
            problem = self._wait(report)
            if problem or self._stage.stop_requested:
                return self._over(problem)
            self._stage.output.ended(self._number, 0)
            result = self._result()
            self.path = result["path"]
            if not result["kept"]:
                return None
            self._lock = lock(result["kept"], fcntl.LOCK_SH)
            if self._lock is not None and is_complete(result["kept"]):
                return None
            # It was removed, or is being made again, since the process ended: repeat.

    def _start(self) -> None:
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        argv = checked.argv(os.path.join(self._directory, RUNNER), "environment", self._directory)
        # Without the job's own variables: all that affects a build must be part of the environment's hash.
        env = {**os.environ, **self._job["secrets"], MARK: self._job["id"]}
        self._code = None
        self._pid = spawn(argv, env, (null, out_write, err_write), die_with_parent=True)
        for fd in (out_write, err_write, null):
            os.close(fd)
        self._number = self._stage.output.add(LABEL, self._node, is_rank=False)
        for fd, stream in ((out_read, frames.STDOUT), (err_read, frames.STDERR)):
            self._stage.loop.watch(fd, lambda fd, stream=stream: self._read(fd, stream))
            self._streams += 1

    def _read(self, fd: int, stream: int) -> None:
        data = os.read(fd, READ_BYTES)
        if data:
            self._stage.output.write(self._number, stream, data)
        else:
            self._stage.loop.forget(fd)
            os.close(fd)
            self._streams -= 1

    def _wait(self, report: Callable[[str], None]) -> str:
        """Wait until the process ends or a stop is requested; return what failed."""
        began = time.monotonic()
        report_at = began + _REPORT_AFTER_S
        while self._code is None and not self._stage.stop_requested:
            elapsed_s = time.monotonic() - began
            if elapsed_s > _TIMEOUT_S:
                return f"not made within {_TIMEOUT_S:g} s"
            if time.monotonic() >= report_at:
                report(f"making environment {self._job['environment']['name']} ({elapsed_s:.0f} s)")
                report_at += _REPORT_EVERY_S
            self._turn(_LOOK_EVERY_S)
        self._drain()
        return self._problem() if self._code else ""

    def _drain(self) -> None:
        """Read the last output, for a bounded time: a process that it left may keep its streams open."""
        until = time.monotonic() + _DRAIN_S
        while self._code is not None and self._streams and time.monotonic() < until:
            self._turn(_LOOK_EVERY_S)

    def _turn(self, timeout_s: float) -> None:
        self._stage.loop.turn(timeout_s)
        self._stage.publish()
        for pid, code in reap():
            if pid == self._pid:
                self._code = code

    def _problem(self) -> str:
        code = self._code or 0
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
        nodes = [states.verdict(self._node, self._sweep())]
        self._stage.output.ended(self._number, self._code if self._code is not None else -signal.SIGTERM)
        self._stage.publish()
        if not problem:
            return {"state": states.STOPPED, "message": "stopped on request", "nodes": nodes}
        name = self._job["environment"]["name"]
        return {
            "state": states.FAILED,
            "message": f"environment {name} can't be made: {problem}",
            "exit_code": _FAILED,
            "tail": self._stage.output.tail(self._number, _TAIL_LINES),
            "nodes": nodes,
        }

    def _sweep(self) -> Dict[str, Any]:
        sweep = Sweep(self._job["id"], self._pid)
        while True:
            report = sweep.step()
            if report is not None:
                return report
            self._turn(0.02)
