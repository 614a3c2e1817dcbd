"""Show a job's output live, with `[rank]` before each line, and report how it ended."""

from __future__ import annotations

import re
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TextIO

import click

from phalanx.cli.console import drop_output, duration, note
from phalanx.cli.kept_output import keeping
from phalanx.cli.terminal import CLEAR_LINE, beneath, has_colors, obeys, one_line, plain, write
from phalanx.counts import counted
from phalanx.errors import JobError, PhalanxError
from phalanx.jobs.advice import advice
from phalanx.jobs.job import JobState, OutputLine
from phalanx.jobs.job_output import last_of_bar, last_state
from phalanx.runner.starter.check import python_target

if TYPE_CHECKING:
    from phalanx.jobs.job import Job, JobStatus

_ELAPSED = re.compile(r" \(\d+ s\)$")
_SCREEN_LINES = 24
SILENT_S = 5.0
_COLORS = ("cyan", "green", "yellow", "blue", "magenta", "bright_cyan", "bright_green", "bright_yellow")


@dataclass(frozen=True)
class Style:
    """How output is shown.

    `merged`: all on standard output, a progress bar as its last state. `raw`: byte for byte, without `[rank]`.
    """

    merged: bool = False
    raw: bool = False
    has_times: bool = False


class Terminated(KeyboardInterrupt):
    """SIGTERM: like Ctrl-C it cancels a job that is still being submitted, but a submitted job continues."""

    exit_code = 128 + signal.SIGTERM

    @classmethod
    def catch(cls) -> None:
        """Make SIGTERM raise this exception."""
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
    stream: str | None = None,
    stop_on_interrupt: bool = False,
    cluster: str = "",
    style: Style = Style(),
    quiet: bool = False,
    is_new: bool = False,
) -> int:
    """Print output until the job ends (without `wait`: what there is now), and return the exit code.

    With the cluster's name, an output that is shown whole is also kept on this machine. Of a job that `is_new`, say
    what it does while it is silent. `quiet`: print nothing but output and failures.
    """
    printer = Printer(style)
    try:
        drafts = not style.raw and (obeys(sys.stdout) or obeys(sys.stderr))
        events = job.follow(wait=wait, process=process, attempt=attempt, tail=tail, drafts=drafts, stream=stream)
        if cluster and process is None and tail is None and stream is None:
            events = keeping(events, cluster, job.id)
        phases = _Phases(job.id, is_shown=is_new and not quiet)
        status = _print_all(job, events, printer, phases, quiet)
    except Terminated:
        note(f"job {job.id} continues: `phalanx logs -f {job.id}` follows it, `phalanx stop {job.id}` ends it")
        return Terminated.exit_code
    except KeyboardInterrupt:
        if not stop_on_interrupt:
            note(f"left job {job.id} running; `phalanx stop {job.id}` ends it")
            return 130
        status = _stop(job)
        if status is None:
            return 130
        if not status.state.final:
            report_stopped(status)
            return 130
    if status is None or not status.state.final:
        return 0
    if not quiet or status.state is not JobState.SUCCEEDED:
        _report_end(status, with_tail=not style.merged and not printer.has_just_shown(status.tail))
    return status.process_exit_code


def report_stopped(status: JobStatus) -> int:
    """Report what was proven of a stopped job; return 0 if no process of it can be left."""
    if not status.state.final:
        note(f"job {status.id} has not ended yet: {beneath(status.message) or status.state.value}")
        return 1
    _report_end(status)
    return 0 if status.verified else 1


def _print_all(
    job: Job, events: Iterable[OutputLine | JobStatus], printer: Printer, phases: _Phases, quiet: bool
) -> JobStatus | None:
    status: JobStatus | None = None
    try:
        for event in events:
            if isinstance(event, OutputLine):
                phases.end()
                _print_or_refuse(job, event, printer)
                continue
            printer.leave_draft()
            phases.show(event)
            if not quiet:
                _report_wait(event, status)
            status = event
    finally:
        phases.end()
        printer.leave_draft()
    return status


class _Phases:
    """Says what a job does that has neither a message nor any output for some seconds, once in each state.

    On a terminal it also says what the first rank does, as the job's runner reports it more and more seldom.
    """

    def __init__(self, job_id: str, is_shown: bool) -> None:
        self._id, self._is_over = job_id, not is_shown
        self._timer: threading.Timer | None = None
        self._known: tuple[JobState, bool] | None = None
        self._said = ""

    def show(self, status: JobStatus) -> None:
        """Begin to wait for the first output, or for another state or message."""
        says_nothing = status.state is JobState.RUNNING or not (status.state.final or status.message)
        if not self._is_over and status.state is JobState.RUNNING and status.activity not in ("", self._said):
            self._say_what_it_does(status)
            return
        if self._is_over or (status.state, says_nothing) == self._known:
            return
        self._cancel()
        self._known = status.state, says_nothing
        if says_nothing and (status.state is JobState.PENDING or _is_watched()):
            self._timer = threading.Timer(SILENT_S, note, (f"job {self._id}: {_phase(status)}",))
            self._timer.daemon = True
            self._timer.start()

    def _say_what_it_does(self, status: JobStatus) -> None:
        self._cancel()
        self._known, self._said = (status.state, True), status.activity
        if _is_watched():
            note(f"job {self._id}: {counted(status.processes, 'rank')} running, no output yet; {one_line(self._said)}")

    def end(self) -> None:
        """Say nothing more: there is output, or the job has ended."""
        self._is_over = True
        self._cancel()

    def _cancel(self) -> None:
        if self._timer:
            self._timer.cancel()


def _is_watched() -> bool:
    """Whether a person waits for output: a file or a pipe gets nothing but what the job writes, and its states."""
    return sys.stderr.isatty() and sys.stdout.isatty()


def _phase(status: JobStatus) -> str:
    if status.state is JobState.PENDING:
        return "its nodes are being reached, and check the command and what it imports"
    imports = "; Python may still be importing its modules" if python_target(status.command) else ""
    return f"{counted(status.processes, 'rank')} running, no output yet{imports}"


def _report_wait(status: JobStatus, before: JobStatus | None) -> None:
    """Print the job's new message, such as what it waits for, unless only the elapsed time has changed."""
    known = _ELAPSED.sub("", before.message) if before else ""
    if not status.state.final and _ELAPSED.sub("", status.message) not in ("", known):
        note(f"job {status.id}: {beneath(status.message)}")


def _print_or_refuse(job: Job, line: OutputLine, printer: Printer) -> None:
    try:
        printer.show(line)
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        raise JobError(
            f"can't write the output of job {job.id}: {error.strerror}", _what_becomes_of(job), code="cannot-write"
        ) from error


def _what_becomes_of(job: Job) -> str:
    shows = f"`phalanx logs {job.id}` shows its output."
    try:
        state = job.status().state
    except PhalanxError:
        return shows
    if state.final:
        return f"The job has ended ({state.value}): {shows}"
    return f"The job continues: `phalanx logs -f {job.id}` follows it, `phalanx stop {job.id}` ends it."


class Printer:
    """Print output: into a file or a pipe as it was written; a terminal shows an unfinished line as it changes."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._colored = has_colors(sys.stdout)
        self._draft_on: TextIO | None = None
        self._latest: deque[tuple[str, str]] = deque(maxlen=_SCREEN_LINES)

    def has_just_shown(self, tail: Sequence[str]) -> bool:
        """Return whether a process ended with these lines, and they are still on a small screen."""
        by_process: dict[str, list[str]] = {}
        for process, text in self._latest:
            by_process.setdefault(process, []).append(text)
        return any(lines[-len(tail) :] == list(tail) for lines in by_process.values())

    def show(self, line: OutputLine) -> None:
        # What went into a file is not on the screen.
        if not line.is_draft and (line.stream == "stderr" or sys.stdout.isatty()):
            self._latest.append((line.process, last_state(line.data).decode(errors="replace")))
        stream = sys.stderr if line.stream == "stderr" and not self._style.merged else sys.stdout
        if self._style.raw:
            write(stream, line.data + b"\n" * line.has_end)
        elif line.is_draft and not obeys(stream):
            return
        elif obeys(stream):
            self._end_draft(CLEAR_LINE)
            write(stream, self._before(line) + (_cut(line) if line.is_draft else last_state(line.data) + b"\n"))
            self._draft_on = stream if line.is_draft else None
        else:
            write(stream, self._before(line) + self._kept(line, stream) + b"\n")

    def _kept(self, line: OutputLine, stream: TextIO) -> bytes:
        """Return what stays of a line: of a progress bar, the last state, unless a file gets what was written."""
        if stream.isatty():
            return last_state(line.data)
        return last_of_bar(line.data) if self._style.merged else line.data

    def _before(self, line: OutputLine) -> bytes:
        return (_time(line.time_s) if self._style.has_times else b"") + _prefix(line.process, self._colored)

    def leave_draft(self) -> None:
        """Keep the unfinished line, because something else follows."""
        self._end_draft("\n")

    def _end_draft(self, by: str) -> None:
        if self._draft_on:
            self._draft_on.write(by)
            self._draft_on.flush()
            self._draft_on = None


def _cut(line: OutputLine) -> bytes:
    """Cut an unfinished line to the terminal's width, since only one line can be cleared."""
    room = shutil.get_terminal_size().columns - len(f"[{line.process}] ") - 1
    return plain(line.data.decode("utf-8", "surrogateescape"))[:room].encode("utf-8", "surrogateescape")


def _time(at_s: float) -> bytes:
    """Return a time as RFC 3339 writes it, to the millisecond."""
    at_ms = round(at_s * 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(at_ms // 1000))}.{at_ms % 1000:03}Z ".encode()


def _prefix(process: str, colored: bool) -> bytes:
    text = f"[{process}] "
    if colored:
        last = process.rpartition(" ")[2]
        number = int(last) if last.isdigit() else len(process)
        text = click.style(text, fg=_COLORS[number % len(_COLORS)])
    return text.encode()


def _stop(job: Job) -> JobStatus | None:
    note(f"\nstopping job {job.id} (press Ctrl-C again to stop waiting)")
    try:
        return job.stop()
    except KeyboardInterrupt:
        note(f"stopped waiting for job {job.id}; `phalanx stop {job.id}` tries again")
        return None


def _report_end(status: JobStatus, with_tail: bool = True) -> None:
    took = f" after {duration(status.duration_s(time.time()))}" if status.started_at else ""
    color = "green" if status.state.value == "succeeded" else "red"
    message = f": {beneath(status.message)}" if status.message else ""
    note(f"job {status.id} {click.style(status.state.value, fg=color)}{took}{message}")
    if with_tail and status.tail and status.state.value in ("failed", "lost"):
        note("\n".join(f"  | {beneath(line)}" for line in status.tail))
    if helps := advice(status):
        note(one_line(helps))
    for line in status.load:
        note(f"  {one_line(line)}")
    note(_verdict(status))


def _verdict(status: JobStatus) -> str:
    """Return what was proven about the job's processes on the nodes."""
    is_damaged = status.state.value == "damaged"
    if not status.nodes and not status.processes and not is_damaged:
        return "nothing was started"
    if not status.nodes:
        return "whether processes of it are left on the nodes is unknown"
    unclean = [f"{one_line(node.node)} {one_line(node.message)}" for node in status.nodes if not node.clean]
    if unclean:
        return f"not verified: {'; '.join(unclean)}"
    killed = f"; {status.killed} had to be killed" if status.killed else ""
    return f"no process of it is left on {counted(len(status.nodes), 'node')}{killed}"
