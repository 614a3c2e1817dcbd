"""The boot log: printed to the console at once, and shipped to CloudWatch Logs in batches from a thread."""

from __future__ import annotations

import threading
import time
from typing import Optional

from phalanx.node.aws_client import AwsError
from phalanx.node.services import LogStream

_BATCH_S = 1.0
_LINE_CHARACTERS = 8000
_LINES = 1000


class BootLog:
    """Say what happens. What can't be shipped is printed only: evidence must never fail a boot."""

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
        """Begin to send what was said and will be; again in a copy of the process, which has no threads."""
        self._stream = stream
        self._said, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 10) -> None:
        """Send the rest; wait for it so long at most."""
        self._ended.set()
        self._said.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while not self._ended.wait(_BATCH_S):
            self._send()
            # Nothing is said for hours: a look each second would cost a large cluster on one machine a core.
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
