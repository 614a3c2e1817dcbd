"""A poll loop with handlers, and a writer that never blocks it: the base of the starter and the runner."""

from __future__ import annotations

import _thread
import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict

    Handler = Callable[[int], object]

# With more unsent output than this, processes' output is not read, so that they wait and memory does not grow.
PAUSE_BYTES = 1 << 20
READ_BYTES = 1 << 16


def is_readable(fd: int, timeout_s: float) -> bool:
    """Return whether fd has something to read, or its end, within timeout_s; select() fails for fds from 1,024 on."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


class Loop:
    """Calls the handler of each file descriptor that becomes ready."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: Dict[int, Handler] = {}

    def watch(self, fd: int, handler: Handler, events: int = select.POLLIN) -> None:
        """Call handler(fd) whenever fd is ready; a second call replaces the first."""
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def forget(self, fd: int) -> None:
        """Stop watching fd; no error when it was not watched."""
        if self._handlers.pop(fd, None):
            self._poll.unregister(fd)

    def turn(self, timeout_s: float | None) -> None:
        """Wait for the next event, at most timeout_s, and handle all that have arrived."""
        for fd, _ in self._poll.poll(None if timeout_s is None else max(0, timeout_s * 1000)):
            handler = self._handlers.get(fd)
            if handler:
                handler(fd)


class Sender:
    """Writes to a pipe as fast as it accepts data and keeps the rest; a broken pipe calls on_broken once."""

    def __init__(self, loop: Loop, fd: int, on_broken: Callable[[], None]) -> None:
        os.set_blocking(fd, False)
        self._loop = loop
        self._fd = fd
        self._on_broken = on_broken
        self._data = bytearray()
        self._broken = False
        self._lock = _thread.allocate_lock()

    @property
    def pending(self) -> int:
        """The number of bytes that the pipe has not accepted yet."""
        return len(self._data)

    def send(self, data: bytes) -> None:
        """Write data after everything sent before."""
        if self._broken:
            return
        waiting = bool(self._data)
        self._data += data
        if not waiting:
            self._write(self._fd)

    def poke(self, data: bytes) -> None:
        """Write data (a few bytes, which a pipe takes whole or not at all) unless other data waits; from any thread."""
        with self._lock:
            if self._broken or self._data:
                return
            try:
                os.write(self._fd, data)
            except OSError:
                pass  # a full pipe carries other signs of life; the loop notices a broken one

    def close(self) -> None:
        """Close the pipe; data that it has not accepted is lost."""
        if not self._broken:
            self._stop()

    def _write(self, _: int) -> None:
        try:
            # Small slices: a pipe takes 64 KiB, and copying the rest would cost time.
            with self._lock, memoryview(self._data) as view, view[:READ_BYTES] as part:
                written = os.write(self._fd, part)
            del self._data[:written]
        except BlockingIOError:
            pass
        except OSError:
            self._stop()
            self._on_broken()
            return
        self._watch()

    def _watch(self) -> None:
        if self._data:
            self._loop.watch(self._fd, self._write, select.POLLOUT)
        else:
            self._loop.forget(self._fd)

    def _stop(self) -> None:
        with self._lock:
            self._broken = True
            self._data.clear()
            self._loop.forget(self._fd)
            os.close(self._fd)
