"""Forwards the output of a node's processes to the head; while the head does not accept it, they wait."""

from __future__ import annotations

import os

from phalanx.runner import frames
from phalanx.runner.loop import PAUSE_BYTES, READ_BYTES, Loop, Sender

TYPE_CHECKING = False
if TYPE_CHECKING:
    from re import Pattern
    from typing import Dict, Tuple

    from phalanx.runner.starter.counting import Counting


class Forwarder:
    """Reads processes' pipes, and sends their output with the processes' numbers."""

    def __init__(self, loop: Loop, out: Sender, counting: Counting) -> None:
        self._loop = loop
        self._out = out
        self._counting = counting
        self._pipes: Dict[int, Tuple[int, int]] = {}  # fd → process number, stream
        self._harmless: Dict[int, Pattern[bytes]] = {}  # process number → output to remove
        self._paused = False

    def add(self, number: int, out_fd: int, err_fd: int, harmless: str = "", is_rank: bool = True) -> None:
        """Add the pipes of a process, and a regular expression for output to remove. A rank's steps are counted."""
        if is_rank:
            self._counting.add(number)
        if harmless:
            import re  # here, because most starters do not need its 8 ms

            self._harmless[number] = re.compile(harmless.encode(), re.MULTILINE)
        for fd, stream in ((out_fd, frames.STDOUT), (err_fd, frames.STDERR)):
            os.set_blocking(fd, False)
            self._pipes[fd] = (number, stream)
            if not self._paused:
                self._loop.watch(fd, self._read)

    def drain(self, number: int) -> None:
        """Send the remaining output of a process that has ended."""
        # Bounded: a descendant that outlives the process may write into the same pipe for ever.
        for fd in [fd for fd, (owner, _) in self._pipes.items() if owner == number]:
            for _ in range(PAUSE_BYTES // READ_BYTES):
                if not self._read(fd):
                    break

    def end(self, number: int) -> None:
        """Send the remaining output of a process that has ended, and count no more of its steps."""
        self.drain(number)
        self._counting.end(number)

    def drain_all(self) -> None:
        """Send the remaining output of all processes."""
        for number in {number for number, _ in self._pipes.values()}:
            self.drain(number)

    def balance(self) -> None:
        """Stop reading from processes while the head does not accept their output, so that they wait."""
        pause = self._out.pending > PAUSE_BYTES
        if pause == self._paused:
            return
        self._paused = pause
        for fd in self._pipes:
            if pause:
                self._loop.forget(fd)
            else:
                self._loop.watch(fd, self._read)

    def _read(self, fd: int) -> bool:
        """Forward the output that has come; return False when there is none."""
        number, stream = self._pipes[fd]
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.forget(fd)
            del self._pipes[fd]
            os.close(fd)
            return False
        if number in self._harmless:
            data = self._harmless[number].sub(b"", data)
        if data:
            self._counting.read(number, stream, data)
            self._out.send(frames.pack(frames.OUTPUT, number, data, stream))
        return True
