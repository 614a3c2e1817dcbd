"""Print lines, JSON, tables and durations."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Sequence
from itertools import compress, zip_longest
from typing import Any

import click

from phalanx.cli.terminal import for_stream, has_colors, one_line

_LEAST_OF_TEXT = 16
"""Columns that a folded text has at least; shorter cells stay on one line."""
_LONGEST_CELL = 1000


def say(text: str = "") -> None:
    """Print a line of the command's result (standard output)."""
    click.echo(for_stream(text, sys.stdout), color=has_colors(sys.stdout))


def note(text: str) -> None:
    """Print a line about the progress (standard error)."""
    click.echo(for_stream(text, sys.stderr), err=True, color=has_colors(sys.stderr))


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


def line_width() -> int:
    """Return how many columns standard output has, without limit if it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], by_importance: Sequence[str] = ()) -> None:
    """Print a table that never cuts a word; on a terminal it folds long texts and leaves out empty columns.

    Where a terminal is too narrow, it has as many columns as fit, chosen `by_importance`; or, if that names none, a
    line for each cell.
    """
    table = [list(columns), *([_cell(str(cell)) for cell in row] for row in rows)]
    limit = line_width()
    if sys.stdout.isatty():
        table = _without_empty_columns(table)
        left_out = _left_out(table, by_importance, limit)
        table = _without(table, left_out)
        if left_out:
            note(f"A wider terminal also shows {', '.join(left_out)}; --json has all.")
    if _taken(_least(table)) > limit:
        _print_cells(table, limit)
        return
    widths = _widths(table, limit)
    for row in table:
        folded = [_fold(cell, width) for cell, width in zip(row, widths, strict=True)]
        for line in zip_longest(*folded, fillvalue=""):
            say("  ".join(map(_padded, line, widths)).rstrip())


def _cell(text: str) -> str:
    """Return a cell's text; of a very long one, which would make every row as wide, the beginning."""
    return one_line(text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}…")


def _print_cells(table: list[list[str]], limit: int) -> None:
    """Print each cell on a line of its own, after its column's name."""
    columns, *rows = table
    label = max(map(_width, columns))
    for number, row in enumerate(rows):
        if number:
            say()
        for column, cell in zip(columns, row, strict=True):
            first, *others = _fold(cell, limit - label - 2)
            for line in (f"{_padded(column, label)}  {first}", *(f"{' ' * label}  {other}" for other in others)):
                say(line)


def _left_out(table: list[list[str]], by_importance: Sequence[str], limit: int) -> list[str]:
    """Return the columns that do not fit beside more important ones."""
    left_out = [column for column in table[0] if column in by_importance]
    for column in by_importance:
        if column in left_out:
            without = [one for one in left_out if one != column]
            left_out = without if _taken(_least(_without(table, without))) <= limit else left_out
    return left_out


def _without(table: list[list[str]], columns: Sequence[str]) -> list[list[str]]:
    shown = [column not in columns for column in table[0]]
    return [list(compress(row, shown)) for row in table]


def _without_empty_columns(table: list[list[str]]) -> list[list[str]]:
    """Leave out the columns that have nothing but `-`."""
    shown = [len(table) == 1 or any(cell.strip("-") for cell in column[1:]) for column in zip(*table, strict=True)]
    return [list(compress(row, shown)) for row in table]


def _widths(table: list[list[str]], limit: int) -> list[int]:
    """Return the columns' widths: those of texts shrink until the table fits, and never below a word."""
    widths, least = [max(map(_width, column)) for column in zip(*table, strict=True)], _least(table)
    while _taken(widths) > limit and widths != least:
        spare = [width if width > fewest else 0 for width, fewest in zip(widths, least, strict=True)]
        widths[spare.index(max(spare))] -= 1
    return widths


def _least(table: list[list[str]]) -> list[int]:
    """Return the columns' smallest widths: those of their longest words, and of texts a little more."""
    return [
        max(
            min(max(map(_width, column)), _LEAST_OF_TEXT),
            *(_width(word) for cell in column for word in cell.split(" ")),
        )
        for column in zip(*table, strict=True)
    ]


def _taken(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _fold(text: str, width: int) -> list[str]:
    """Fold a text at its spaces."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        lines[-1:] = [longer] if _width(longer) <= width else [lines[-1], word]
    return lines


def _width(text: str) -> int:
    """Return how many columns of a terminal the text takes."""
    taken = {"Mn": 0, "Me": 0, "Cf": 0}
    wide = {"W": 2, "F": 2}
    return sum(taken.get(unicodedata.category(one), wide.get(unicodedata.east_asian_width(one), 1)) for one in text)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


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
