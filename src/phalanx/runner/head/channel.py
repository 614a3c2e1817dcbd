"""The head's end of the line to one node's starter: frames, beats, and the line's end."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from phalanx.runner import frames
from phalanx.runner.liveness import SILENT_S, Contact
from phalanx.runner.loop import Loop, Sender

if TYPE_CHECKING:
    from typing import Any, Callable, Optional

    from phalanx.runner.login import Line

_READ_BYTES = 1 << 18
_KEPT_ERROR_BYTES = 4096
# The beginnings of ssh's messages about a connection that it could not share or keep, which are harmless.
_ABOUT_SHARING = ("ControlSocket ", "mux_client_")
_BEAT = frames.pack(frames.BEAT)


class Channel:
    """Calls on_frame(channel, frame) for each frame, and on_closed(channel) once when nothing more can come."""

    def __init__(
        self,
        loop: Loop,
        node: str,
        line: Line,
        on_frame: Callable[[Channel, frames.Frame], None],
        on_closed: Callable[[Channel], None],
    ) -> None:
        self.node = node
        self.checked = False
        self.report: Any = None
        self.closed = False
        self.opened_at = time.monotonic()
        self._contact: Optional[Contact] = None
        self._loop = loop
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._reader = frames.FrameReader(preamble=True)
        self._error = b""
        self._line = line
        self._in = Sender(loop, line.to_fd, lambda: None)
        loop.watch(line.from_fd, self._read)
        loop.watch(line.error_fd, self._read_error)

    @property
    def error(self) -> str:
        """What ssh or the node printed outside the frames, for messages."""
        lines = (self._error or self._reader.preamble).decode(errors="replace").strip().splitlines()
        return "\n".join(line for line in lines if not line.startswith(_ABOUT_SHARING)) or "the connection closed"

    def beat(self) -> None:
        """Send the starter a sign of life; callable from any thread."""
        self._in.poke(_BEAT)

    def check_contact(self) -> None:
        """Give up the node when its starter, after its first frame, was silent for too long."""
        if self._contact and self._contact.update() > SILENT_S:
            self.give_up(f"no sign of life for {SILENT_S:g} s")

    def is_overdue(self, within_s: float) -> bool:
        """Whether the node has not answered the checks this long after this was opened."""
        return not (self.checked or self.closed) and time.monotonic() > self.opened_at + within_s

    def give_up(self, reason: str) -> None:
        """Close the channel, with this reason as its error; a starter that still lives ends all its processes."""
        if not self.closed:
            self._error = reason.encode()
            self._close(self._line.from_fd)
            self.cut()

    def send(self, frame: bytes) -> None:
        """Send a frame; does nothing when the channel is closed."""
        self._in.send(frame)

    def shut(self) -> None:
        """Close the runner's end; a starter that still lives ends all its processes."""
        self._in.close()
        for fd in (self._line.from_fd, self._line.error_fd):
            self._loop.forget(fd)
            os.close(fd)
        self.closed = True

    def cut(self) -> None:
        """Give up a connection that does not answer."""
        self._line.cut()

    def _read(self, fd: int) -> None:
        data = os.read(fd, _READ_BYTES)
        if not data:
            self._close(fd)
            return
        self._contact = self._contact or Contact()
        self._contact.heard()
        try:
            for frame in self._reader.feed(data):
                if frame[0] != frames.BEAT:
                    self._on_frame(self, frame)
        except frames.ChannelBrokenError as error:
            self._error += str(error).encode()
            self._close(fd)

    def _read_error(self, fd: int) -> None:
        data = os.read(fd, 4096)
        if not data:
            self._loop.forget(fd)
            return
        self._error = (self._error + data)[-_KEPT_ERROR_BYTES:]

    def _close(self, fd: int) -> None:
        self._loop.forget(fd)
        # ssh's last message may still be in its pipe.
        if not self.closed:
            self.closed = True
            self._drain_error()
            self._on_closed(self)

    def _drain_error(self) -> None:
        os.set_blocking(self._line.error_fd, False)
        try:
            self._error = (self._error + os.read(self._line.error_fd, _KEPT_ERROR_BYTES))[-_KEPT_ERROR_BYTES:]
        except BlockingIOError:
            pass


def answer_over(loop: Loop, channel: Channel, number: int) -> int:
    """Return a pipe that stands for an agent on another node: what is written to it is sent to that node's starter."""
    answer_read, answer_write = os.pipe()

    def pass_on(fd: int) -> None:
        channel.send(frames.pack_json(frames.ANSWER, {"code": int(os.read(fd, 64))}, number))
        loop.forget(fd)
        os.close(fd)

    loop.watch(answer_read, pass_on)
    return answer_write
