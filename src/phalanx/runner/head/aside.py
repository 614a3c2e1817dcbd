"""A process of the runner's own beside those of the job; its output is kept with theirs."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from phalanx.runner import frames
from phalanx.runner.loop import READ_BYTES
from phalanx.runner.system import reap, spawn

if TYPE_CHECKING:
    from typing import Mapping, Optional, Sequence

    from phalanx.runner.head.run_context import RunContext


class Aside:
    """A process with a label on the head, which ends with the runner. `turn` lets the loop read its output.

    `number` is that of its output, and `code` its exit status, where `turn` saw its end.
    """

    def __init__(self, context: RunContext, label: str, node: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.code: Optional[int] = None
        self._context = context
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        stdin_read, self._stdin = os.pipe()
        self.pid = spawn(argv, env, (stdin_read, out_write, err_write), die_with_parent=True)
        for fd in (out_write, err_write, stdin_read):
            os.close(fd)
        self.number = context.output.add(label, node, is_rank=False)
        self._streams = 2
        for fd, stream in ((out_read, frames.STDOUT), (err_read, frames.STDERR)):
            context.loop.watch(fd, lambda fd, stream=stream: self._read(fd, stream))

    @property
    def has_closed(self) -> bool:
        """Whether no more output will come."""
        return self._streams == 0

    def close_stdin(self) -> None:
        """End its stdin."""
        if self._stdin >= 0:
            os.close(self._stdin)
        self._stdin = -1

    def turn(self, timeout_s: float) -> None:
        """Handle events of the whole runner for this long."""
        self._context.loop.turn(timeout_s)
        self._context.publish()
        for pid, code in reap():
            if pid == self.pid:
                self.code = code

    def drain(self, within_s: float) -> None:
        """Read the last output, for a bounded time: a process that it left may keep its streams open."""
        until = time.monotonic() + within_s
        while not self.has_closed and time.monotonic() < until:
            self.turn(within_s / 10)

    def _read(self, fd: int, stream: int) -> None:
        data = os.read(fd, READ_BYTES)
        if data:
            self._context.output.write(self.number, stream, data)
        else:
            self._context.loop.forget(fd)
            os.close(fd)
            self._streams -= 1
