"""Show a job's output as it comes, `[rank]` before each line, and tell how it ended."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn, TextIO

import click

from phalanx.cli.console import drop_output, duration, note
from phalanx.cli.terminal import CLEAR_LINE, plain, write
from phalanx.errors import JobError
from phalanx.jobs.job_output import last_state

if TYPE_CHECKING:
    from phalanx.jobs.job import Job, JobStatus, OutputLine

_ELAPSED = re.compile(r" \(\d+ s\)$")
_COLORS = ("cyan", "green", "yellow", "blue", "magenta", "bright_cyan", "bright_green", "bright_yellow")


class Terminated(KeyboardInterrupt):
    """SIGTERM came: as Ctrl-C, it takes back a job that is still on its way; but it leaves one that was taken."""

    exit_code = 128 + signal.SIGTERM

    @classmethod
    def catch(cls) -> None:
        """From now on SIGTERM raises it."""
        signal.signal(signal.SIGTERM, cls._raise)

    @classmethod
    def _raise(cls, *_: object) -> NoReturn:
        raise cls


def follow(
    job: Job,
    *,
    wait: bool = True,
    process: str | None = None,
    attempt: int | None = None,
    tail: int | None = None,
    stop_on_interrupt: bool = False,
) -> int:
    """Print until the job ends (or what there is now, without `wait`); returns the exit code for the shell."""
    try:
        drafts = sys.stdout.isatty() or sys.stderr.isatty()
        events = job.follow(wait=wait, process=process, attempt=attempt, tail=tail, drafts=drafts)
        status = _print_all(job, events)
    except Terminated:
        note(f"job {job.id} goes on: `phalanx logs -f {job.id}` follows it, `phalanx stop {job.id}` ends it")
        return Terminated.exit_code
    except KeyboardInterrupt:
        if not stop_on_interrupt:
            note(f"left job {job.id} running; `phalanx stop {job.id}` ends it")
            return 130
        status = _stop(job)
        if status is None:
            return 130
    if status is None or not status.state.final:
        return 0
    _tell_end(status)
    return status.process_exit_code


def stop(job: Job) -> int:
    """End a job and tell what was proven; 0 when no process of it can be left."""
    status = job.stop()
    _tell_end(status)
    return 0 if status.verified else 1


def _print_all(job: Job, events: Iterable[OutputLine | JobStatus]) -> JobStatus | None:
    from phalanx.jobs.job import OutputLine

    status: JobStatus | None = None
    printer = _Printer()
    try:
        for event in events:
            if isinstance(event, OutputLine):
                _print_or_refuse(job, event, printer)
                continue
            printer.leave_draft()
            _tell_wait(event, status)
            status = event
    finally:
        printer.leave_draft()
    return status


def _tell_wait(status: JobStatus, before: JobStatus | None) -> None:
    """What it waits for, why it starts again, or whose slots it shares; how long it has waited by now is no news."""
    known = _ELAPSED.sub("", before.message) if before else ""
    if not status.state.final and _ELAPSED.sub("", status.message) not in ("", known):
        note(f"job {status.id}: {status.message}")


def _print_or_refuse(job: Job, line: OutputLine, printer: _Printer) -> None:
    try:
        printer.show(line)
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        raise JobError(
            f"can't write the output of job {job.id}: {error.strerror}",
            f"That does not touch the job: `phalanx logs -f {job.id}` follows it, `phalanx stop {job.id}` ends it.",
        ) from error


class _Printer:
    """Into a file or a pipe go the bytes as they came. On a terminal a line that is written over stays the last one."""

    def __init__(self) -> None:
        self._colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._draft_on: TextIO | None = None

    def show(self, line: OutputLine) -> None:
        stream = sys.stderr if line.stream == "stderr" else sys.stdout
        if not stream.isatty():
            if not line.is_draft:
                write(stream, _prefix(line.process, self._colored) + line.data + b"\n")
            return
        self._end_draft(CLEAR_LINE)
        data = _cut(line) if line.is_draft else last_state(line.data) + b"\n"
        write(stream, _prefix(line.process, self._colored) + data)
        self._draft_on = stream if line.is_draft else None

    def leave_draft(self) -> None:
        """Let it stand where it is: something else comes now."""
        self._end_draft("\n")

    def _end_draft(self, by: str) -> None:
        if self._draft_on:
            self._draft_on.write(by)
            self._draft_on.flush()
            self._draft_on = None


def _cut(line: OutputLine) -> bytes:
    """As much of it as stands in one line of the terminal, or it could not be cleared."""
    room = shutil.get_terminal_size().columns - len(f"[{line.process}] ") - 1
    return plain(line.data.decode("utf-8", "surrogateescape"))[:room].encode("utf-8", "surrogateescape")


def _prefix(process: str, colored: bool) -> bytes:
    text = f"[{process}] "
    if colored:
        last = process.rpartition(" ")[2]
        number = int(last) if last.isdigit() else len(process)
        text = click.style(text, fg=_COLORS[number % len(_COLORS)])
    return text.encode()


def _stop(job: Job) -> JobStatus | None:
    note(f"\nstopping job {job.id} (Ctrl-C again leaves it to its fate)")
    try:
        return job.stop()
    except KeyboardInterrupt:
        note(f"left job {job.id}; `phalanx stop {job.id}` tries again")
        return None


def _tell_end(status: JobStatus) -> None:
    took = f" after {duration(status.duration_s(time.time()))}" if status.started_at else ""
    color = "green" if status.state.value == "succeeded" else "red"
    message = f": {status.message}" if status.message else ""
    note(f"job {status.id} {click.style(status.state.value, fg=color)}{took}{message}")
    if status.tail and status.state.value in ("failed", "lost"):
        note("\n".join(f"  | {line}" for line in status.tail))
    note(_verdict(status))


def _verdict(status: JobStatus) -> str:
    """What was proven on the nodes about the job's processes."""
    is_damaged = status.state.value == "damaged"
    if not status.nodes and not status.processes and not is_damaged:
        return "nothing was started"
    if not status.nodes:
        return "what is left of it on the nodes is not known"
    unclean = [f"{node.node} ({node.message})" for node in status.nodes if not node.clean]
    if unclean:
        return f"not verified on {', '.join(unclean)}"
    killed = f"; {status.killed} had to be killed" if status.killed else ""
    return f"no process of it is left on {_count(len(status.nodes), 'node')}{killed}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
