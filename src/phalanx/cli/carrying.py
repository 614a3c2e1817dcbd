"""The progress of `get` and `put`: nothing for two seconds, then a progress line, and a summary at the end."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from phalanx.cli.console import duration, note, say
from phalanx.cli.terminal import CLEAR_LINE, obeys, one_line
from phalanx.counts import counted
from phalanx.objects.download import size_text as size

if TYPE_CHECKING:
    from phalanx.jobs.transfer import Copied, Moved

_SILENT_S = 2.0
_EVERY_S = {True: 0.2, False: 10.0}


class Meter:
    """Show progress: on a terminal in one line that is overwritten, elsewhere in a line every ten seconds."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._terminal = obeys(sys.stderr)
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

    def end(self, copied: Copied) -> bool:
        """Print where the copy is, what was left out and what is missing; return whether nothing is missing."""
        if self._shown and self._terminal:
            click.echo(CLEAR_LINE, err=True, nl=False)
        files = "" if copied.files == 1 else f"{copied.files} files, "
        unchanged = f"; {counted(copied.unchanged, 'file')} unchanged" if copied.unchanged else ""
        say(copied.place)
        note(f"{files}{size(copied.bytes)} in {duration(time.monotonic() - self._started_s)}{unchanged}")
        for name in copied.left_out[:5]:
            note(f"left out: {one_line(name)} (a link that leads out of the directory)")
        if len(copied.left_out) > 5:
            note(f"left out: {len(copied.left_out) - 5} more of these")
        for name in copied.unread[:5]:
            note(f"not copied: {one_line(name)}")
        if len(copied.unread) > 5:
            note(f"not copied: {len(copied.unread) - 5} more")
        return not copied.unread
