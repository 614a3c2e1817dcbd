"""What all attempts of a job share: the loop, the followers' socket, the output, and a request to stop."""

from __future__ import annotations

import math
import os
import signal
from typing import TYPE_CHECKING

from phalanx.runner.files import state as states
from phalanx.runner.files.output import OutputWriter
from phalanx.runner.head.load_book import Loads
from phalanx.runner.head.runner_socket import RunnerSocket
from phalanx.runner.loop import Loop
from phalanx.runner.names import OUTPUT, STOP

if TYPE_CHECKING:
    import socket
    from typing import Any, Callable

    from phalanx.runner.files.job_status import JobStatus


class RunContext:
    """The shared parts; one per runner."""

    def __init__(self, directory: str, listener: socket.socket) -> None:
        self._directory = directory
        self.loop = Loop()
        self.socket = RunnerSocket(self.loop, listener)
        self.output = OutputWriter(os.path.join(directory, OUTPUT))
        self.stops = 0  # how often a stop was requested
        self.loads = Loads(directory)
        self.socket.stop = self._on_stop
        self.socket.load = self.loads.answer
        self.on_wait: Callable[[str], None] = lambda _text: None  # called with what the job waits for
        self.on_notice: Callable[[str], None] = lambda _text: None  # called with which node leaves, and why
        self.on_silence: Callable[[str], None] = lambda _text: None  # called with what the first rank does meanwhile
        # Returns how many seconds of the job's time limit are left, or infinity.
        self.time_left_s: Callable[[], float] = lambda: math.inf
        self._watch_signals()

    @property
    def stop_requested(self) -> bool:
        """Whether the job must end."""
        return self.stops > 0

    def keep(self, status: JobStatus) -> None:
        """Write the job's state, and tell followers. Raises OSError where its final one can't be written."""
        try:
            states.write(self._directory, status)
        except OSError as error:
            if status.state.final:
                raise
            # The job continues: its processes may have filled the disk, and its last state has space reserved.
            self.output.error = self.output.error or f"its state was not kept: {error.strerror}"
        self.socket.notify()

    def publish(self) -> None:
        """Let followers see what was written."""
        if self.output.flush():
            self.socket.notify()

    def _watch_signals(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(STOP, self._on_stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (STOP,))
        self.loop.watch(wake_read, lambda fd: os.read(fd, 4096))

    def _on_stop(self, *_: Any) -> None:
        self.stops += 1
