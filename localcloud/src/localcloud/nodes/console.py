"""The console of a node, which is copied to a log of limited size: a pipe, or a terminal where systemd wants one."""

from __future__ import annotations

import os
import pty
from contextlib import suppress
from pathlib import Path

_READ_BYTES = 1 << 16
_LOG_BYTES = 16 << 20
# Root may have made the pipe as large as Linux lets anyone (/proc/sys/fs/pipe-max-size).
_LAST_READS = 16


class Console:
    """What a node prints. Its processes write to `node_end`; read `output` whenever it has data.

    A node with a full operating system has a pseudo-terminal, whose path is `tty`; other nodes have a pipe.
    """

    def __init__(self, log: Path, owner: int, has_terminal: bool) -> None:
        # The node's end stays open here, too: otherwise the other end would report a hangup between two writers.
        self.output, self.node_end = pty.openpty() if has_terminal else os.pipe()
        self.tty = os.ttyname(self.node_end) if has_terminal else ""
        os.fchown(self.node_end, owner, owner)
        os.set_blocking(self.output, False)
        self._log = log
        log.touch()

    def copy(self) -> None:
        """Append a piece of what was printed to the log, up to its limit. Raises BlockingIOError if there is none."""
        text = os.read(self.output, _READ_BYTES).replace(b"\r\n", b"\n")
        # A node must neither fill this machine's disk nor end the supervisor when something else has filled it.
        with suppress(OSError), self._log.open("ab") as log:
            if log.tell() < _LOG_BYTES:
                log.write(text)

    def close(self) -> None:
        """Append the rest once the node has ended, and close everything but `output`.

        A process of another node may have been given the console, and still be printing: there is no end to wait for.
        """
        with suppress(BlockingIOError):
            for _ in range(_LAST_READS):
                self.copy()
        os.close(self.node_end)
