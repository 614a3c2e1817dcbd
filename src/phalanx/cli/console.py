"""Print lines, JSON, tables and durations. rich is imported only for a table."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from phalanx.cli.terminal import for_stream, plain


def say(text: str = "") -> None:
    """Print a line of the command's result (standard output)."""
    click.echo(for_stream(text, sys.stdout), color=_color())


def note(text: str) -> None:
    """Print a line about the progress (standard error)."""
    click.echo(for_stream(text, sys.stderr), err=True, color=_color())


def require_terminal() -> None:
    """Raise UsageError when there is no terminal to confirm on what can't be undone."""
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to confirm this on: add --yes", click.get_current_context())


def confirm(question: str, abort: bool = True) -> bool:
    """Ask on the terminal, as standard error shows it; other people may have named what the question contains.

    Raise click.Abort for no, or return False if not `abort`.
    """
    return click.confirm(for_stream(question, sys.stderr), abort=abort, err=True)


def drop_output() -> None:
    """Discard what is buffered for standard output, so that Python's last flush does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, default=str))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; its columns are never cut in a file or a pipe."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    is_terminal = sys.stdout.isatty()
    table = Table(box=box.SIMPLE_HEAD if is_terminal else None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=not is_terminal, overflow="fold")
    for row in rows:
        table.add_row(*(plain(str(cell)) if is_terminal else str(cell) for cell in row))
    console = Console(highlight=False, markup=False)
    console = console if console.is_terminal else Console(highlight=False, markup=False, width=400)
    console.print(table)


def duration(seconds: float) -> str:
    """Format a duration: 4.2 s, 3 min 20 s, 5 h 03 min, 6 d 23 h."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours = minutes // 60
    return f"{hours} h {minutes % 60:02d} min" if hours < 72 else f"{hours // 24} d {hours % 24:02d} h"


def moment(at_s: float) -> str:
    """Return a time as it is shown to people: 2026-11-22 18:00 UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at_s))


def _color() -> bool | None:
    """Return False if NO_COLOR is set (https://no-color.org), or None: click uses colours on a terminal."""
    return False if os.environ.get("NO_COLOR") else None
