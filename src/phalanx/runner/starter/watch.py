"""What a starter says beside the job's output: load and steps with each beat; on request, stacks or a silent rank."""

from __future__ import annotations

import os
import select
import threading
import time

from phalanx.runner import frames
from phalanx.runner.liveness import BEAT_EVERY_S
from phalanx.runner.load import pack
from phalanx.runner.starter.counting import Counting
from phalanx.runner.starter.doing import Doing
from phalanx.runner.starter.meter import Meter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Mapping, Optional, Tuple

    from phalanx.runner.load import Load
    from phalanx.runner.loop import Loop
    from phalanx.runner.starter.look import Looks

_BEAT = frames.pack(frames.BEAT)


class Watch:
    """Measures and looks from the job's checks to its end; `end` leaves no process of its own behind."""

    def __init__(self, loop: Loop, job_directory: str, send: Callable[[bytes], None]) -> None:
        self._loop, self._directory, self._send = loop, job_directory, send
        self._meter: Optional[Meter] = None
        self._looks: Optional[Looks] = None
        self._doing: Optional[Doing] = None
        self._newest: Optional[Load] = None
        self._glances = False
        self._is_over = False
        self.counting = Counting()

    def begin(self, step: str) -> None:
        """Begin to count steps, and to measure in a thread: what it reads may hang or take long, and beats must not."""
        if self._meter is None:
            self.counting.look_for(step)
            self._meter = Meter(self._loop, os.getpid())
            threading.Thread(target=self._measure, args=(self._meter,), daemon=True).start()

    def _measure(self, meter: Meter) -> None:
        while not self._is_over:
            time.sleep(BEAT_EVERY_S)
            self._newest = meter.measure()

    def beat(self) -> bytes:
        """Return a sign of life: frames with the load that was measured since the last one, and the ranks' progress."""
        load, self._newest = self._newest, None
        if not load or self._is_over:
            return _BEAT
        progress = self.counting.report()
        step, rate = self.counting.lowest()
        return frames.pack(frames.LOAD, payload=pack(load._replace(step=step, step_rate=rate))) + progress

    def look(self, ranks: Mapping[int, int], work: str) -> None:
        """Take the stacks of these ranks (process number → pid), and send them."""
        if self._is_over:
            return
        from phalanx.runner.starter.look import Looks  # here, because most starters do not need its 10 ms

        self._looks = self._looks or Looks(self._loop, self._directory, self._send)
        self._looks.take(ranks, work)

    def glance(self, number: int, numbers: Mapping[int, int]) -> None:
        """Send what this process has done since its start; `numbers` maps pids to the numbers of processes."""
        self._doing = self._doing or Doing()
        pid = next((pid for pid, owner in numbers.items() if owner == number), 0)
        if pid and not self._glances:
            self._glances = True
            seen, out = os.pipe()
            self._loop.watch(seen, lambda _: self._pass_on((seen, out)))
            threading.Thread(target=_glance, args=(self._doing, pid, number, out), daemon=True).start()

    def _pass_on(self, pipe: Tuple[int, int]) -> None:
        self._send(os.read(pipe[0], select.PIPE_BUF))
        self._loop.forget(pipe[0])
        for fd in pipe:
            os.close(fd)
        self._glances = False

    def check(self) -> None:
        """Give up a look that takes too long."""
        if self._looks:
            self._looks.check()

    def end(self) -> None:
        """End what was started for this: it must not be taken for a process that the job has left."""
        if not self._is_over and (last := self.counting.report(is_last=True)):
            self._send(last)
        self._is_over = True
        if self._meter:
            self._meter.end()
        if self._looks:
            self._looks.end()


def _glance(doing: Doing, pid: int, number: int, out: int) -> None:
    os.write(out, frames.pack_json(frames.DOING, {"text": doing.of(pid)}, number))
