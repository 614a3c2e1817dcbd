"""The console of a node with a full operating system: a terminal, as its systemd wants, which is copied to a log."""

from __future__ import annotations

import os
import pty
from contextlib import suppress
from pathlib import Path

_READ_BYTES = 1 << 16
_LOG_BYTES = 16 << 20


class Console:
    """A pseudo-terminal of this machine. `tty` is the path of the node's end; read `output` whenever it has data."""

    def __init__(self, log: Path, owner: int) -> None:
        # The node's end stays open here, too: otherwise the other end would report a hangup between two writers.
        self.output, self._node_end = pty.openpty()
        self.tty = os.ttyname(self._node_end)
        os.fchown(self._node_end, owner, owner)
        os.set_blocking(self.output, False)
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def copy(self) -> None:
        """Append a piece of what was printed to the log, up to its limit. Raises BlockingIOError if there is none."""
        text = os.read(self.output, _READ_BYTES).replace(b"\r\n", b"\n")
        # A node must neither fill this machine's disk nor end the supervisor when something else has filled it.
        with suppress(OSError):
            if os.fstat(self._log).st_size < _LOG_BYTES:
                os.write(self._log, text)

    def close(self) -> None:
        """Append the rest once the node has ended, and close everything but `output`."""
        with suppress(BlockingIOError):
            while True:
                self.copy()
        os.close(self._node_end)
        os.close(self._log)
