"""A job's load on one node over time, in a file of fixed size: each 2 s of the last hour, and each minute of 13 days.

load/NODE.ring   a header with the layout's version, then the slots; a sample's slot follows from its time
"""

from __future__ import annotations

import os
import stat
import struct
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid
from phalanx.runner.files.record import open_to_read
from phalanx.runner.load import PACKED, Load, mean, pack, unpack

if TYPE_CHECKING:
    from typing import Dict, List, Tuple

_HEADER = b"phalanx-load-3\n"
_HEADER_BYTES = 64
_TIME = struct.Struct("<I")
_SLOT_BYTES = _TIME.size + PACKED.size
# (seconds that a slot stands for, number of slots): 2.0 MB together.
_FINE, _COARSE = (2, 1800), (60, 13 * 24 * 60)
HOUR_BYTES = _HEADER_BYTES + _SLOT_BYTES * _FINE[1]
"""So much of a ring has the samples of the last hour."""
_LARGEST_BYTES = _HEADER_BYTES + _SLOT_BYTES * (_FINE[1] + _COARSE[1])


class RingWriter:
    """Writes samples; those that were added since the last call of `added` are kept in memory."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._slots: Dict[int, bytes] = {}  # offset → content
        self._minute = 0
        self._samples: List[Load] = []

    def add(self, at_s: int, load: Load) -> None:
        """Add a sample, with its time in seconds since 1970."""
        self._put(at_s, load, _FINE, _HEADER_BYTES)
        minute = at_s - at_s % _COARSE[0]
        if minute != self._minute:
            self._end_minute()
        self._minute = minute
        self._samples.append(load)

    def added(self, is_last: bool = False) -> Dict[int, bytes]:
        """Return what was added since the last call, for `write`; with `is_last`, also the minute that has begun."""
        if is_last:
            self._end_minute()
        slots, self._slots = self._slots, {}
        return slots

    def write(self, slots: Dict[int, bytes]) -> None:
        """Write what `added` has returned. A failure to write loses it."""
        try:
            if self._fd < 0:
                self._fd = _opened(self._path)
            for offset, content in slots.items():
                os.pwrite(self._fd, content, offset)
        except OSError:
            return

    def _end_minute(self) -> None:
        if self._samples:
            self._put(self._minute, mean(self._samples), _COARSE, _HEADER_BYTES + _SLOT_BYTES * _FINE[1])
        self._samples = []

    def _put(self, at_s: int, load: Load, slots: Tuple[int, int], begin: int) -> None:
        step_s, count = slots
        self._slots[begin + _SLOT_BYTES * (at_s // step_s % count)] = _TIME.pack(at_s) + pack(load)


def _opened(path: str) -> int:
    """Open a ring to write, a new one with its header. Raises OSError, at once for what is no file."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path} is no file")
    os.pwrite(fd, _HEADER.ljust(_HEADER_BYTES, b"\0"), 0)
    return fd


def read(path: str) -> Tuple[List[Tuple[int, Load]], List[Tuple[int, Load]]]:
    """Return the samples of the last hour and the means of minutes, each with its time, the oldest first.

    Slots that are damaged are left out. Raises FileNotFoundError, NotADirectoryError, Invalid.
    """
    with os.fdopen(open_to_read(path), "rb") as file:
        return parsed(file.read(_LARGEST_BYTES), os.path.basename(path))


def parsed(data: bytes, name: str) -> Tuple[List[Tuple[int, Load]], List[Tuple[int, Load]]]:
    """Return what `read` returns, of the content of a ring. Raises Invalid."""
    if not data.startswith(_HEADER):
        raise Invalid(f"{name} has another layout: this phalanx can't read it")
    return _slots(data[_HEADER_BYTES:HOUR_BYTES]), _slots(data[HOUR_BYTES:])


def _slots(data: bytes) -> List[Tuple[int, Load]]:
    found = []
    for start in range(0, len(data) - _SLOT_BYTES + 1, _SLOT_BYTES):
        (at_s,) = _TIME.unpack_from(data, start)
        if at_s:
            try:
                found.append((at_s, unpack(data[start + _TIME.size : start + _SLOT_BYTES])))
            except Invalid:
                continue
    return sorted(found)
