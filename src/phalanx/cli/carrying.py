"""How `get` and `put` show what they do: nothing for two seconds, then how far they are, and a line at the end."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from phalanx.cli.console import duration, note, say
from phalanx.cli.terminal import CLEAR_LINE

if TYPE_CHECKING:
    from phalanx.reach.transfer import Copied, Moved

_SILENT_S = 2.0
_EVERY_S = {True: 0.2, False: 10.0}


class Meter:
    """Called with each step; one line that is written over on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._next_s = self._started_s + _SILENT_S
        self._shown = False

    def __call__(self, moved: Moved) -> None:
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + _EVERY_S[self._terminal]
        self._shown = True
        percent = 100 * moved.bytes // max(1, moved.total_bytes)
        rate = moved.bytes / (now - self._started_s)
        text = f"{size(moved.bytes)} of {size(moved.total_bytes)}, {percent} %, {size(rate)}/s"
        click.echo(CLEAR_LINE + text if self._terminal else text, err=True, nl=not self._terminal)

    def end(self, copied: Copied) -> None:
        """Tell where it is now, and what was not taken along."""
        if self._shown and self._terminal:
            click.echo(CLEAR_LINE, err=True, nl=False)
        files = "" if copied.files == 1 else f"{copied.files} files, "
        say(copied.place)
        note(f"{files}{size(copied.bytes)} in {duration(time.monotonic() - self._started_s)}")
        for name in copied.left_out[:5]:
            note(f"left out: {name} (a link that leads elsewhere, or no file)")
        if len(copied.left_out) > 5:
            note(f"left out: {len(copied.left_out) - 5} more of these")


def size(count: float) -> str:
    """Bytes for people: 12 bytes, 3.4 MiB."""
    for unit, bytes_ in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= bytes_:
            return f"{count / bytes_:.1f} {unit}"
    return f"{count:.0f} bytes"
