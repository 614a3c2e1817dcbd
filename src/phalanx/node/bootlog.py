"""The boot log: print lines to the console at once, and send them to CloudWatch Logs in batches from a thread."""

from __future__ import annotations

import threading
import time
from typing import Optional

from phalanx.node.aws_client import AwsError
from phalanx.node.services import LogStream

_BATCH_S = 3.0
_LINE_CHARACTERS = 8000
_LINES = 1000


class BootLog:
    """The boot log. Lines that can't be sent are only printed: logging must never fail a boot."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str]] = []
        self._stream: Optional[LogStream] = None
        self._said, self._ended = threading.Event(), threading.Event()
        self._thread: Optional[threading.Thread] = None

    def say(self, text: str) -> None:
        print(f"phalanx: {text}", flush=True)
        self.lines.append((int(time.time() * 1000), text[:_LINE_CHARACTERS]))
        self._said.set()

    def ship(self, stream: LogStream) -> None:
        """Start sending lines. Call it again in a forked process, which has no threads."""
        self._stream = stream
        self._said, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 10) -> None:
        """Send the rest, and wait for that at most `timeout_s`."""
        self._ended.set()
        self._said.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while not self._ended.wait(_BATCH_S):
            self._send()
            # No polling: it would cost a large cluster on one machine a whole core, while nothing is logged for hours.
            self._said.wait()
            self._said.clear()
        self._send()

    def _send(self) -> None:
        while self.lines and self._stream:
            batch, self.lines[:_LINES] = self.lines[:_LINES], []
            try:
                self._stream.put(batch)
            except AwsError as error:
                print(f"phalanx: the boot log was not shipped: {error}", flush=True)
