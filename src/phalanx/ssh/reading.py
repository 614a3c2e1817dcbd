"""Reads what a program on a node writes, by line or as it comes, each with a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import IO

from phalanx.runner.loop import is_readable
from phalanx.ssh import head_answers

_READ_BYTES = 1 << 18


class Reader:
    """Reads one pipe, and keeps what was read and not yet returned."""

    def __init__(self, pipe: IO[bytes] | None) -> None:
        assert pipe is not None
        self._fd = pipe.fileno()
        self._data = b""

    def ready(self, timeout_s: float) -> bool:
        """Return whether there is something to read, or the end of the pipe."""
        return bool(self._data) or is_readable(self._fd, timeout_s)

    def has_data(self, timeout_s: float) -> bool:
        """Return whether something comes within timeout_s, other than the end."""
        return bool(self._data) or (self.ready(timeout_s) and self._more())

    def line(self, timeout_s: float) -> bytes | None:
        """Return the next line; None at the end or after the timeout. Raises InvalidAnswerError if it is too long."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._data:
            if not is_readable(self._fd, deadline - time.monotonic()) or not self._more():
                return None
            if len(self._data) > head_answers.LONGEST_LINE_BYTES:
                raise head_answers.InvalidAnswerError("a line without an end")
        line, _, self._data = self._data.partition(b"\n")
        return line

    def chunks(self, deadline: float | None) -> Iterator[bytes]:
        """Yield what comes, until the end or the deadline (of the monotonic clock)."""
        while deadline is None or self.ready(deadline - time.monotonic()):
            if not self._data and not self._more():
                return
            data, self._data = self._data, b""
            yield data

    def _more(self) -> bool:
        """Read what there is, or wait for it; return False at the end."""
        data = os.read(self._fd, _READ_BYTES)
        self._data += data
        return bool(data)
