"""What this process waits for: the library names its waits, and the command line shows those that take long."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Show = Callable[[str], AbstractContextManager[object]]

_show: Show = nullcontext


def show_with(show: Show) -> None:
    """Enter `show(what)` around each wait from now on; `what` completes "waiting for …"."""
    global _show
    _show = show


def waiting(what: str) -> AbstractContextManager[object]:
    """Return a context manager for the block that waits."""
    return _show(what)
