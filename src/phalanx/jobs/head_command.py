"""A job's command on the head, over ssh: its input, its answers, and its refusals."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

from phalanx.errors import JobError, PhalanxError
from phalanx.node.validate import truth
from phalanx.runner.checked import UNAVAILABLE
from phalanx.runner.names import REFUSED_PREFIX
from phalanx.ssh import head_answers
from phalanx.ssh.bounded import file_without_name
from phalanx.ssh.reading import Reader
from phalanx.ssh.remote import Broken, Remote
from phalanx.waits import waiting

_ANSWER_WITHIN_S = 60.0
# ssh's exit status.
_BROKEN = 255
_NOT_ACCEPTED = "the head did not accept the job"
_MAX_STDERR_BYTES = 1 << 20
_CODE = re.compile("[a-z0-9-]{1,40}")
_PLAN: dict[str, head_answers.Check] = {
    "launcher": head_answers.matching("[a-z]{1,40}"),
    **dict.fromkeys(("ranks", "nodes"), head_answers.whole),
}
_ANSWERS: dict[str, head_answers.Check] = {
    "here": truth,
    "plan": lambda value: JobPlan(**head_answers.required(head_answers.record(value), _PLAN)),
    "send": head_answers.list_of(head_answers.whole),
    "made": truth,
    "shares": head_answers.text,
}


class JobPlan(NamedTuple):
    """What the head is about to start, as far as it knows before it has the code."""

    launcher: str
    ranks: int
    nodes: int


class HeadCommand:
    """A command on the head whose output is read as it comes; its stderr is kept for messages."""

    def __init__(self, remote: Remote, command: str, stdin: int) -> None:
        self._errors = file_without_name()
        try:
            self._process = remote.popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=self._errors)
        except BaseException:
            self._errors.close()
            raise
        self._output = Reader(self._process.stdout)

    def offer(self, data: bytes) -> None:
        """Write to its stdin before it has answered. A command that reads nothing reports why in its answer."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def send(self, write: Callable[[IO[bytes]], None]) -> None:
        """Write to its stdin and close it. Raises JobError with the end of its stderr when it stopped reading.

        After a KeyboardInterrupt the command continues with the input so far, and the caller looks up the result.
        """
        assert self._process.stdin is not None
        try:
            with self._process.stdin as stdin:
                write(stdin)
        except OSError as error:
            raise self._ended("the code could not be sent", error) from error
        except KeyboardInterrupt:
            raise
        except BaseException:
            self.close()
            raise

    def begins(self) -> bool:
        """Return whether the runner has begun; False when the head does not have it.

        Raises JobError with the end of its stderr when it ends at once.
        """
        try:
            return self.answer("here")
        except OSError as error:
            if self.end() == UNAVAILABLE:
                return False
            raise self._ended(_NOT_ACCEPTED, error) from error

    def plan(self) -> JobPlan:
        """Return what the head is about to start. Raises JobError when it refuses the job."""
        try:
            return self.answer("plan")
        except OSError as error:
            raise self._ended(_NOT_ACCEPTED, error) from error

    def _ended(self, what: str, error: OSError) -> PhalanxError:
        """Return why the job was not accepted: Broken if the connection broke before all had been sent."""
        is_broken = self.end() == _BROKEN and not _refused(self._stderr())
        refusal = self.refusal(what, str(error))
        self.close()
        return Broken("the connection to the head broke again and again", refusal.hint) if is_broken else refusal

    def answer(self, key: str) -> Any:
        """Return `key` of the next line of JSON; skip empty lines (signs of life). Raises OSError, ClusterError."""
        while (line := self._output.line(_ANSWER_WITHIN_S)) is not None:
            if line.startswith(b'{"'):
                return head_answers.required(head_answers.parsed(line), {key: _ANSWERS[key]})[key]
        raise BrokenPipeError("the head did not answer")

    def begins_within(self, timeout_s: float) -> bool:
        """Return whether it writes something within timeout_s. `chunks` returns the data."""
        return self._output.has_data(timeout_s)

    def is_silent(self, for_s: float) -> bool:
        """Return whether it neither writes something nor ends for this long."""
        return not self._output.ready(for_s)

    def end_within(self, timeout_s: float) -> bool:
        """Return whether it ends within timeout_s, with exit status 0."""
        return self._output.ready(timeout_s) and self.end() == 0

    def chunks(self, deadline: float | None) -> Iterator[bytes]:
        """Yield what it writes, until its end or the deadline."""
        with waiting("an answer from the head"):
            self.begins_within(_ANSWER_WITHIN_S if deadline is None else deadline - time.monotonic())
        return self._output.chunks(deadline)

    def end(self) -> int:
        """Return its exit status, which follows soon after its output has ended."""
        try:
            return self._process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def refusal(self, what: str, reason: str) -> JobError:
        """Return why the job was not accepted: the head's refusal, else the end of its stderr, else `reason`."""
        stderr = self._stderr()
        return _refused(stderr) or JobError(
            f"{what}: {error_tail(stderr) or reason}",
            "Check with `phalanx jobs` whether it was accepted after all, and the cluster with `phalanx status`.",
            code="job-not-accepted",
        )

    def error_tail(self) -> str:
        """Return the last lines of its stderr. Raises JobError if these are the head's refusal."""
        stderr = self._stderr()
        if refusal := _refused(stderr):
            raise refusal
        return error_tail(stderr)

    def _stderr(self) -> str:
        self._errors.seek(0)
        return self._errors.read(_MAX_STDERR_BYTES).decode(errors="replace")

    def close(self) -> None:
        """End the command; the job is not touched."""
        self._process.kill()
        self._process.wait()
        for pipe in filter(None, (self._process.stdin, self._process.stdout)):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._errors.close()


def _refused(stderr: str) -> JobError | None:
    _, refused, answer = stderr.partition(REFUSED_PREFIX)
    code, _, reason = answer.partition("): ")
    if not refused:
        return None
    return JobError(*reason.strip().split("\n", 1), code=code if _CODE.fullmatch(code) else "")


def error_tail(stderr: str) -> str:
    """Return the last lines of a command's stderr."""
    lines = stderr.strip().splitlines()
    return "\n".join(lines[-5:])
