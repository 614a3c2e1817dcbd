"""The thread of one stack: it takes steps in the order in which they were posted, and sets timers for later ones."""

from __future__ import annotations

import functools
import logging
import queue
from collections.abc import Callable
from typing import Any

from localcloud.clock import Timer
from localcloud.cloudformation.model import Stack
from localcloud.context import Context

log = logging.getLogger(__name__)


class Mailbox:
    """What a worker of a stack is built on."""

    def __init__(self, context: Context, stack: Stack) -> None:
        self.context = context
        self.stack = stack
        self.mailbox: queue.Queue[Callable[[], None]] = queue.Queue()
        self._timers: dict[str, Timer] = {}

    def post(self, step: Callable[..., None], *args: Any) -> None:
        """Queue a step for the stack's thread, which ends with the stack."""
        if not self.stack.gone:
            self.mailbox.put(functools.partial(step, *args))

    def _run(self) -> None:
        while not (self.stack.gone and self.mailbox.empty()):
            self._work(self.mailbox.get())

    def _work(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:
            log.exception("stack %s", self.stack.name)
        finally:
            self.mailbox.task_done()

    def _later(self, name: str, delay_s: float, step: Callable[..., None], *args: Any) -> None:
        self._timers[name] = self.context.clock.call_later(delay_s, self.post, step, *args)

    def _cancel_timer(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer:
            timer.cancel()

    def _mark(self, status: str, reason: str = "") -> None:
        self.stack.mark(status, self.context.clock.now(), reason)

    def _mark_resource(self, name: str, status: str, reason: str = "") -> None:
        self.stack.mark_resource(self.stack.resources[name], status, self.context.clock.now(), reason)
