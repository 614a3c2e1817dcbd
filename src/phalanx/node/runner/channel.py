"""The head's end of one node's starter: the ssh (or, on the head itself, the process) that runs it, and its frames."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Callable, NamedTuple

from phalanx.node.runner import frames
from phalanx.node.runner.beats import SILENT_S, Contact
from phalanx.node.runner.loop import Loop, Sender
from phalanx.node.runner.names import RUNNER
from phalanx.node.runner.system import spawn

if TYPE_CHECKING:
    from typing import Any, Optional, Tuple

    from phalanx.node.process import JobDescription

_READ_BYTES = 1 << 18
_KEPT_ERROR_BYTES = 4096
_BEAT = frames.pack(frames.BEAT)

# BatchMode: never a prompt. ServerAlive: for the time before the first frame; after it, heartbeats are quicker.
SSH = ("ssh", "-x", "-T", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-o", "ControlPath=none")
SSH += ("-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")


def command_on(
    node: str, is_head: bool, runner: str, *words: str, connect_within_s: Optional[int] = None
) -> Tuple[str, ...]:
    """argv that runs a verb of the job's runner.pyz on a node."""
    argv = ("python3", "-IS", runner, *words)
    # The first value of an option counts.
    hurry = ("-o", f"ConnectTimeout={connect_within_s}") if connect_within_s else ()
    return argv if is_head else (SSH[0], *hurry, *SSH[1:], node, "exec " + " ".join(map(quoted, argv)))


def quoted(word: str) -> str:
    """The word as a POSIX shell takes it literally."""
    return "'" + word.replace("'", "'\\''") + "'"


class Line(NamedTuple):
    """The pipes to a starter and from it, the one with what is said outside the frames, and how to give them up."""

    to_fd: int
    from_fd: int
    error_fd: int
    cut: Callable[[], None]


def spawned(argv: Tuple[str, ...]) -> Line:
    """The line to a starter that this command runs."""
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    pid = spawn(argv, os.environ, (in_read, out_write, err_write))
    for fd in (in_read, out_write, err_write):
        os.close(fd)
    return Line(in_write, out_read, err_read, lambda: os.kill(pid, signal.SIGKILL))


def log_in(job: JobDescription, node: str, is_head: bool) -> Line:
    """The line to a starter over ssh, or on the head itself without."""
    words = ["starter", job.id, job.work, *(["--head"] if is_head else [])]
    return spawned(command_on(node, is_head, os.path.join(job.directory, RUNNER), *words))


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
        """What ssh or the node said outside the frames, for messages."""
        text = (self._error or self._reader.preamble).decode(errors="replace").strip()
        return text or "the connection closed"

    def beat(self) -> None:
        """From any thread: tell the starter that its runner lives."""
        self._in.poke(_BEAT)

    def check_contact(self) -> None:
        """Give the node up when its starter, once it has begun to speak, was silent for too long."""
        if not self.closed and self._contact and self._contact.look() > SILENT_S:
            self._error = f"no sign of life for {SILENT_S:g} s".encode()
            self._close(self._line.from_fd)
            self.cut()

    def send(self, frame: bytes) -> None:
        """Send a frame; does nothing when the channel is closed."""
        self._in.send(frame)

    def shut(self) -> None:
        """Close our end; a starter that still lives ends all it has."""
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
        # ssh's last words may still be in its pipe.
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
    """What stands here for an agent that asked through its own node's starter: a pipe, whose text is answered there."""
    answer_read, answer_write = os.pipe()

    def pass_on(fd: int) -> None:
        channel.send(frames.pack_json(frames.ANSWER, {"code": int(os.read(fd, 64))}, number))
        loop.forget(fd)
        os.close(fd)

    loop.watch(answer_read, pass_on)
    return answer_write
