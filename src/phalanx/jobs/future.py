"""A job as a future of concurrent.futures: the handle that Python programs wait on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Any

from phalanx.errors import JobError
from phalanx.jobs.job import Job
from phalanx.jobs.job_output import OutputLine
from phalanx.runner.files.job_status import JobState, JobStatus, NodeVerdict


@dataclass(frozen=True)
class Result:
    """How a job ended. `output` reads from the cluster, which must still exist.

    exit_code   of the first process that failed, 0 after success
    nodes       one verdict per node: whether it is proved that no process of the job is left there
    """

    id: str
    state: JobState
    exit_code: int
    message: str
    nodes: tuple[NodeVerdict, ...]
    duration_s: float
    status: JobStatus = field(repr=False)
    _job: Job = field(repr=False, compare=False)

    @property
    def verified(self) -> bool:
        """Whether it is proved that no process of the job is left on any node."""
        return self.status.verified

    def output(self, rank: int | str | None = None, stream: str | None = None) -> str:
        """Return the output of one rank (or of an engine, by its label); None: of all processes, in order of arrival.

        `stream` selects only "stdout" or only "stderr". Bytes that are not UTF-8 are replaced.
        """
        process = None if rank is None else str(rank)
        lines = [event for event in self._job.follow(wait=False, process=process) if isinstance(event, OutputLine)]
        wanted = (line.data.decode(errors="replace") for line in lines if stream in (None, line.stream))
        return "".join(f"{line}\n" for line in wanted)


class JobFailed(JobError):  # noqa: N818 - reads as what happened
    """The job ran and did not succeed: see `result`. `message` ends with the last lines of the first failure."""

    code = "job-failed"

    def __init__(self, result: Result) -> None:
        self.result = result
        tail = "".join(f"\n  | {line}" for line in result.status.tail)
        message = f"job {result.id} {result.state.value}: {result.message}{tail}"
        super().__init__(message, f"`phalanx logs {result.id}` shows all its output.")


class JobFuture(Future[Result]):
    """A job that was started. It continues even if this object is discarded.

    `concurrent.futures.wait` and `as_completed` accept it like any other future. A thread follows the job only once a
    callback or waiter is registered; everything else queries the cluster.
    """

    def __init__(self, job: Job) -> None:
        self._watcher: threading.Thread | None = None
        self._status: JobStatus | None = None
        self._guard = threading.Lock()
        self.job = job
        super().__init__()

    def __repr__(self) -> str:
        return f"<JobFuture {self.id}{f' {self._status.state.value}' if self._status else ''}>"

    @property
    def id(self) -> str:
        return self.job.id

    def status(self) -> JobStatus:
        """Return the job's status, from the cluster until the job has ended."""
        with self._guard:
            if self._status is None or not self._status.state.final:
                self._status = self.job.status()
            return self._status

    def running(self) -> bool:
        """Whether the job has been accepted and has not ended."""
        return not self.done()

    def done(self) -> bool:
        """Whether the job has ended, successfully or not."""
        return self.status().state.final

    def cancelled(self) -> bool:
        """Whether the job was stopped on request."""
        return self.status().state is JobState.STOPPED

    def cancel(self) -> bool:
        """End the job on all nodes, with proof. Return False when it had already ended by itself."""
        with self._guard:
            if self._status is None or not self._status.state.final:
                self._status = self.job.stop()
            return self._status.state is JobState.STOPPED

    def result(self, timeout: float | None = None) -> Result:
        """Wait for a success (at most `timeout` seconds) and return it.

        Raises JobFailed, and concurrent.futures' CancelledError (when the job was stopped) and TimeoutError.
        """
        failure = self.exception(timeout)
        if failure is not None:
            raise failure
        return self.outcome(timeout)

    def exception(self, timeout: float | None = None) -> JobFailed | None:
        """Wait for the end, and return its failure, or None. Raises CancelledError and TimeoutError."""
        result = self.outcome(timeout)
        if result.state is JobState.STOPPED:
            raise CancelledError
        return None if result.state is JobState.SUCCEEDED else JobFailed(result)

    def outcome(self, timeout: float | None = None) -> Result:
        """Wait for the end, and return its result, whatever the job's state. Raises TimeoutError."""
        status = self._wait(timeout)
        return Result(
            id=status.id,
            state=status.state,
            exit_code=0 if status.state is JobState.SUCCEEDED else status.process_exit_code,
            message=status.message,
            nodes=status.nodes,
            duration_s=status.duration_s(status.ended_at or 0.0),
            status=status,
            _job=self.job,
        )

    def add_done_callback(self, fn: Callable[[JobFuture], object]) -> None:
        """Call fn(self) when the job has ended, from the thread that follows the job."""
        super().add_done_callback(fn)  # pyright: ignore[reportArgumentType] - it is called with this future
        self._watch()

    @property
    def _waiters(self) -> list[Any]:
        """The list in which `wait` and `as_completed` of concurrent.futures register for the end."""
        self._watch()
        return self._registered

    @_waiters.setter
    def _waiters(self, waiters: list[Any]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._registered = waiters

    def _watch(self) -> None:
        with self._guard:
            if self._watcher is not None:
                return
            self._watcher = threading.Thread(target=self._settle, name=f"job-{self.id}", daemon=True)
        self._watcher.start()

    def _settle(self) -> None:
        """Wait for the job's end, and notify the registered callbacks and waiters."""
        try:
            failure = self.exception()
        except CancelledError:
            super().cancel()
            self.set_running_or_notify_cancel()
        except Exception as error:  # the cluster can't be asked any more
            self.set_exception(error)
        else:
            if failure:
                self.set_exception(failure)
            else:
                self.set_result(self.outcome())

    def _wait(self, timeout: float | None) -> JobStatus:
        with self._guard:
            status = self._status
        if status is None or not status.state.final:
            try:
                status = self.job.wait(timeout)
            except JobError:
                status = self.status()
                if not status.state.final:
                    raise FutureTimeoutError(f"job {self.id} did not end within {timeout} s") from None
        with self._guard:
            self._status = status
        return status
