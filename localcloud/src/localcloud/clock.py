"""The local cloud's clock, injected everywhere so that no test waits on real time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Protocol


class Timer(Protocol):
    """A delayed call; `cancel()` is harmless after it ran."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Wall-clock time and delayed calls. Nothing in the local cloud sleeps or polls."""

    def now(self) -> datetime:
        """Return the current time as an aware datetime in UTC."""
        ...

    def call_later(self, delay_s: float, call: Callable[..., object], *args: Any) -> Timer:
        """Run `call(*args)` on another thread after `delay_s` seconds."""
        ...


class RealClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(timezone.utc)

    def call_later(self, delay_s: float, call: Callable[..., object], *args: Any) -> Timer:
        timer = threading.Timer(delay_s, call, args)
        timer.daemon = True
        timer.start()
        return timer
