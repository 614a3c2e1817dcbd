"""Counts the steps of ranks in the output that passes, and reads what a script says of itself: `phalanx: loss=0.31`.

The job chooses the expression and the lines, so the cost has limits: bytes for each rank and beat, the length of a
line, and CPU time. Python's `re` looks for signals while it matches.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections import deque

from phalanx.runner import frames
from phalanx.runner.rank_progress import LARGEST_STEP, MOST_VALUES, NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Deque, Dict, List, Optional, Pattern, Tuple

_MOST_BYTES, _LONGEST_LINE = 64 << 10, 1000
_MOST_CPU_S = 0.2
_WINDOW_S, _MOST_SAMPLES = 60.0, 31
_EVERY_S, _BYTES_PER_S = 2.0, 128
_LINE_END = re.compile(rb"[\r\n]+")
_BEGIN = b"phalanx: "
_NUMBER = r"[-+]?[0-9]{1,16}(?:\.[0-9]{0,16})?(?:[eE][-+]?[0-9]{1,2})?"
_VALUE = re.compile(rf"({NAME})=({_NUMBER})".encode())
_STEP = re.compile(rb"[0-9]{1,16}")


class TooSlowError(Exception):
    """The expression took too long."""


class Counting:
    """Reads the output of ranks that were added; `report` sends what has changed."""

    def __init__(self) -> None:
        self._pattern: Optional[Pattern[bytes]] = None
        self._problem = ""
        self._ranks: Dict[int, _Rank] = {}
        self._due_at = 0.0
        self._is_matching = False

    def look_for(self, step: str) -> None:
        """Take the number in the first group of this expression as the step; "": only of lines `phalanx: step=…`."""
        if not step:
            return
        try:
            self._pattern = re.compile(step.encode())
        except (re.error, OverflowError, RecursionError) as error:
            self._problem = f"--step: {error}"[:200]
        signal.signal(signal.SIGVTALRM, self._interrupt)

    def add(self, number: int) -> None:
        """Read the output of this process from now on."""
        self._ranks[number] = _Rank()

    def read(self, number: int, stream: int, data: bytes) -> None:
        """Read a piece of a process's output."""
        rank = self._ranks.get(number)
        if rank:
            self._take(rank, rank.lines(stream, data))

    def _take(self, rank: _Rank, lines: List[bytes]) -> None:
        for line in lines:
            if line.startswith(_BEGIN):
                rank.say(line)
        if self._pattern and lines:
            try:
                rank.reach(self._last_step(lines))
            except TooSlowError:
                self._pattern = None
                self._problem = "--step: the expression takes too long, so steps are no longer counted"

    def _last_step(self, lines: List[bytes]) -> bytes:
        """Return the step of the last line that matches; b"" if none does. Raises TooSlowError."""
        self._is_matching = True
        signal.setitimer(signal.ITIMER_VIRTUAL, _MOST_CPU_S)
        try:
            found = (self._pattern.search(line) for line in reversed(lines) if self._pattern)
            return next((match[1] or b"" for match in found if match), b"")
        finally:
            # No signal that comes after this raises anything.
            self._is_matching = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _interrupt(self, *_: Any) -> None:
        if self._is_matching:
            raise TooSlowError

    def report(self, is_last: bool = False) -> bytes:
        """Return a frame with the ranks whose progress has changed; b"" if there are none, or it is too early."""
        now = time.monotonic()
        if now < self._due_at and not is_last:
            return b""
        changed = [[number, *one.taken()] for number, one in self._ranks.items() if one.has_changed]
        if not changed and not self._problem:
            return b""
        self._ranks = {number: one for number, one in self._ranks.items() if not one.is_over}
        problem, self._problem = self._problem, ""
        frame = frames.pack(
            frames.PROGRESS, payload=json.dumps({"ranks": changed, "problem": problem}, separators=(",", ":")).encode()
        )
        self._due_at = now + max(_EVERY_S, len(frame) / _BYTES_PER_S)
        return frame

    def lowest(self) -> Tuple[float, float]:
        """Return the lowest step of the ranks here, and the lowest rate."""
        known = [one for one in self._ranks.values() if one.step is not None and not one.is_over]
        return float(min((one.step or 0 for one in known), default=0)), min((one.rate for one in known), default=0.0)

    def end(self, number: int) -> None:
        """Note that a process has ended, and its last output was read."""
        if number in self._ranks:
            self._ranks[number].is_over = True


class _Rank:
    def __init__(self) -> None:
        self.step: Optional[int] = None
        self.rate = 0.0
        self.has_changed = self.is_over = False
        self._values: Dict[str, float] = {}
        self._samples: Deque[Tuple[float, int]] = deque(maxlen=_MOST_SAMPLES)
        self._reached_at = 0.0
        self._rests: Dict[int, Optional[bytes]] = {}  # stream → a line that has begun; None: its begin was left out
        self._room, self._full_at = _MOST_BYTES, time.monotonic()

    def lines(self, stream: int, data: bytes) -> List[bytes]:
        """Return the lines that a piece of output completes, or only some if there are too many at once."""
        now = time.monotonic()
        if now > self._full_at + _EVERY_S:
            self._room, self._full_at = _MOST_BYTES, now
        if self._room <= 0:
            self._rests[stream] = None
            return []
        rest = self._rests.get(stream, b"")
        if len(data) > self._room:
            data, rest = data[-self._room :], None
        self._room -= len(data)
        *lines, last = _LINE_END.split((rest or b"") + data)
        is_cut = rest is None and not lines  # still the same line
        self._rests[stream] = None if is_cut or len(last) > _LONGEST_LINE else last
        return [line for line in lines[rest is None :] if 0 < len(line) <= _LONGEST_LINE]

    def say(self, line: bytes) -> None:
        """Take the values of a line `phalanx: name=value …`; other lines that begin so say nothing."""
        words = line[len(_BEGIN) :].split()
        pairs = [match.groups() for word in words if (match := _VALUE.fullmatch(word))]
        if len(pairs) != len(words):
            return
        for name, value in pairs:
            if name == b"step":
                self.reach(value)
            elif name.decode() in self._values or len(self._values) < MOST_VALUES:
                self._values[name.decode()] = float(value)
                self.has_changed = True

    def reach(self, text: bytes) -> None:
        """Note a step, now."""
        if not _STEP.fullmatch(text):
            return
        step = min(int(text), LARGEST_STEP)
        if step == self.step:
            return
        if self.step is not None and step < self.step:
            self._samples.clear()  # it counts from the beginning again, as in each epoch
        self._reached_at, self.step, self.has_changed = time.monotonic(), step, True
        if not self._samples:
            self._samples.append((self._reached_at, step))

    def taken(self) -> Tuple[Optional[int], float, Dict[str, float]]:
        """Return what is sent of it."""
        self.has_changed = False
        if self.step is not None:
            if self._samples[-1][1] != self.step:
                self._samples.append((self._reached_at, self.step))
            while len(self._samples) > 2 and self._samples[0][0] < self._reached_at - _WINDOW_S:
                self._samples.popleft()
            (begin, first), (end, last) = self._samples[0], self._samples[-1]
            self.rate = round((last - first) / (end - begin), 4) if end > begin else 0.0
        return self.step, self.rate, self._values
