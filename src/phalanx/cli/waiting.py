"""Show waits that take longer than two seconds on standard error, so that no command is silent for long."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from phalanx.cli.console import duration, note
from phalanx.counts import first_of

_SILENT_S = 2.0
_EVERY_S = 10.0
_MOST_SHOWN = 3


@dataclass(eq=False)
class Wait:
    """A wait in progress, of one thread. Times are of the monotonic clock."""

    what: str
    since_s: float
    thread: int = field(default_factory=threading.get_ident)


class Waits:
    """Shows the waits of all threads in a line, once the oldest has taken 2 s and then every 10 s."""

    def __init__(self, show: Callable[[str], None] = note) -> None:
        self._show = show
        self._waits: list[Wait] = []
        self._changed = threading.Condition()
        self._watcher: threading.Thread | None = None

    @contextlib.contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Show that this thread waits for `what` while the block runs."""
        wait = Wait(what, time.monotonic())
        with self._changed:
            self._waits.append(wait)
            if len(self._waits) == 1:
                self._changed.notify()
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="waits", daemon=True)
                self._watcher.start()
        try:
            yield
        finally:
            with self._changed:
                self._waits.remove(wait)

    def _watch(self) -> None:
        shown_s = 0.0
        with self._changed:
            while True:
                now = time.monotonic()
                pause_s = until_shown(self._waits, shown_s) - now
                if pause_s <= 0:
                    # Closed by the reader, or by the end of the process.
                    with contextlib.suppress(OSError, ValueError):
                        self._show(describe(self._waits, now))
                    shown_s = now
                else:
                    self._changed.wait(min(pause_s, threading.TIMEOUT_MAX))


def until_shown(waits: Sequence[Wait], shown_s: float) -> float:
    """Return when the waits are shown next; `shown_s` is when they were shown before."""
    oldest_s = min((wait.since_s for wait in waits), default=float("inf"))
    return max(oldest_s + _SILENT_S, shown_s + _EVERY_S if shown_s > oldest_s else 0.0)


def describe(waits: Sequence[Wait], now: float) -> str:
    """Describe the innermost wait of each thread, of those that take long."""
    innermost = {wait.thread: wait for wait in waits if wait.since_s + _SILENT_S <= now}.values()
    names = list(dict.fromkeys(wait.what for wait in innermost))
    oldest_s = min(wait.since_s for wait in innermost)
    return f"waiting for {first_of(names, most=_MOST_SHOWN)} ({duration(now - oldest_s)})"
