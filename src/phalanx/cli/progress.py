"""Show progress: a line for each event, and what takes long; on a terminal a status line with the elapsed time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from phalanx.aws.model import StackEvent
from phalanx.cli.console import note
from phalanx.cli.terminal import beneath, obeys, visible
from phalanx.cluster.stack import NodeAnswered, NodeMissing
from phalanx.counts import counted, first_of
from phalanx.waits import waiting

if TYPE_CHECKING:
    from phalanx.cluster.bring_up import Step as ClusterStep
    from phalanx.cluster.give_back import Released
    from phalanx.images.making import BuildLine

    Step = ClusterStep | BuildLine | Released

_COLORS = {"COMPLETE": "green", "FAILED": "red"}


class Watch:
    """Show steps: `with Watch("creating demo", started_s) as watch: watch.follow(steps)`.

    `started_s` is when the command started (time.monotonic), so that its imports count too. On a terminal the last
    line counts resources and nodes; each gets a line of its own only with `verbose`. Elsewhere each always does, and
    so does a wait of more than two seconds for the next one.
    """

    def __init__(self, title: str, started_s: float, verbose: bool = False) -> None:
        self.title = title
        self._verbose = verbose
        self._finished = 0
        self._nodes = ""
        self.started_s = started_s
        self._busy: dict[str, None] = {}
        self._status: Any = None

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    def __enter__(self) -> Watch:
        if obeys(sys.stderr):
            self._status = _status_line(self.title, self.started_s)
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status:
            self._status.stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take the status line away, for a question."""
        if self._status:
            self._status.stop()
        yield
        if self._status:
            self._status.start()

    def follow(self, steps: Iterable[Step]) -> None:
        """Show all steps."""
        remaining = iter(steps)
        while step := self._next(remaining):
            self._show(step)
            if self._status:
                self._status.update(self._status.task_ids[0], description=f"{self.title}  {self._summary()}")

    def _next(self, steps: Iterator[Step]) -> Step | None:
        with nullcontext() if self._status else waiting(self._awaited()):
            return next(steps, None)

    def _show(self, step: Step) -> None:
        if isinstance(step, StackEvent):
            self._show_event(step)
        elif isinstance(step, NodeAnswered):
            self._nodes = f"{step.answered} of {counted(step.requested, 'node')}"
            self._detail(_text(step))
        else:
            self._line(_text(step))

    def _show_event(self, event: StackEvent) -> None:
        """Print the stack's own events and failures; show a resource in progress only in the status line."""
        if event.resource_type == "AWS::CloudFormation::Stack" or event.failed:
            self._busy.pop(event.logical_id, None)
            self._line(_event_text(event))
        elif event.status.endswith("_IN_PROGRESS"):
            self._busy[event.logical_id] = None
        else:
            self._busy.pop(event.logical_id, None)
            self._finished += 1
            self._detail(_event_text(event))

    def _detail(self, text: str) -> None:
        if self._verbose or not self._status:
            self._line(text)

    def _line(self, text: str) -> None:
        line = f"{self.elapsed_s:7.1f} s  {beneath(text)}"
        if self._status:
            from rich.text import Text  # here, because only a terminal's line needs rich's 60 ms

            # Rich turns parts of a plain string into links.
            self._status.console.print(Text.from_ansi(visible(line)), soft_wrap=True)
        else:
            note(line)

    def _summary(self) -> str:
        return " · ".join(filter(None, (*self._done(), self._in_progress())))

    def _awaited(self) -> str:
        return f"{self._in_progress()}; so far {', '.join(self._done())}" if self._busy else "the cloud"

    def _done(self) -> Iterator[str]:
        yield counted(self._finished, "resource")
        if self._nodes:
            yield self._nodes

    def _in_progress(self) -> str:
        return first_of(self._busy, most=3)


def _status_line(title: str, started_s: float) -> Any:
    """Return a terminal's status line, which disappears at the end: a spinner, the elapsed time and the work."""
    from rich.console import Console  # here, for the same reason
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # here, for the same reason

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    line = Progress(*columns, console=Console(stderr=True, highlight=False), transient=True)
    line.add_task(title, total=None)
    line.tasks[0].start_time = started_s
    return line


def _event_text(event: StackEvent) -> str:
    color = _COLORS.get(event.status.rsplit("_", 1)[-1])
    return click.style(f"{event.status:<18}", fg=color) + str(event).removeprefix(f"{event.status:<18}")


def _text(step: Any) -> str:
    color = "cyan" if isinstance(step, NodeAnswered) else "yellow" if isinstance(step, NodeMissing) else None
    return f"{click.style('NODE', fg=color)}  {step}" if color else str(step)
