"""Curves from files that a job writes: event files of TensorBoard, and CSV. Both are read as they grow, with bounds.

An event file is a row of records: length (8 bytes), its checksum (4), a protocol buffer `Event`, its checksum (4).
Of an event, only step and scalars are read (tensorflow/core/util/event.proto, summary.proto and tensor.proto).
"""

from __future__ import annotations

import csv
import math
import struct
from collections.abc import Iterator
from typing import Protocol

Points = list[tuple[float, "float | None"]]
"""Steps and values, in the order of the steps; a value that is no number is None."""

MOST_CURVES = 24
MOST_POINTS = 2000
_LONGEST_NAME = 120
_LONGEST_RECORD, _LONGEST_LINE = 1 << 16, 1 << 16
_STEPS = ("step", "global_step", "iteration", "iter", "epoch", "batch")
_POLYNOMIAL = 0x82F63B78  # CRC-32C
_FLOAT, _DOUBLE = 1, 2


class Curve:
    """The points of one scalar. When there are too many, every second one is dropped, and of later ones, too."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.values: list[float | None] = []
        self._stride, self._count = 1, 0

    def add(self, step: float, value: float) -> None:
        """Add a point; a value that is no number is a gap."""
        self._count += 1
        if self._count % self._stride and len(self.steps) > 1:
            # The newest value is always shown.
            self.steps[-1], self.values[-1] = step, _finite(value)
            return
        self.steps.append(step)
        self.values.append(_finite(value))
        if len(self.steps) > MOST_POINTS:
            del self.steps[1::2], self.values[1::2]
            self._stride *= 2


class ScalarFile(Protocol):
    """A file that is read in pieces. `problem` says why no more of it is read; `rest` is how much is incomplete."""

    curves: dict[str, Curve]
    problem: str

    @property
    def rest(self) -> int: ...
    def feed(self, data: bytes) -> None: ...


def opened(name: bytes) -> ScalarFile:
    """Return what reads a file of this name."""
    return CsvFile() if name.endswith(b".csv") else EventFile()


class EventFile:
    """Reads an event file of TensorBoard."""

    def __init__(self) -> None:
        self.curves: dict[str, Curve] = {}
        self.problem = ""
        self._data, self._skipped, self._at = bytearray(), 0, 0

    @property
    def rest(self) -> int:
        return len(self._data) + self._skipped

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the file."""
        self._data += data
        while not self.problem and self._take():
            pass
        if self.problem:
            self._data.clear()

    def _take(self) -> bool:
        """Read one record; return False if it is not complete."""
        dropped = min(self._skipped, len(self._data))
        del self._data[:dropped]
        self._skipped -= dropped
        if len(self._data) < 12:
            return False
        length, checksum = struct.unpack_from("<QI", self._data)
        if _masked_crc(self._data[:8]) != checksum:
            self.problem = f"is damaged at byte {self._at}: what comes before is shown"
            return False
        if length > _LONGEST_RECORD:
            self._skipped = length + 16  # an image, or a graph
        elif len(self._data) < length + 16:
            return False
        else:
            self._read(bytes(self._data[12 : 12 + length]))
            del self._data[: length + 16]
        self._at += length + 16
        return True

    def _read(self, record: bytes) -> None:
        try:
            for tag, step, value in scalars(record):
                if tag in self.curves or len(self.curves) < MOST_CURVES:
                    self.curves.setdefault(tag, Curve()).add(step, value)
        except (ValueError, struct.error, IndexError):
            self.problem = f"has no event at byte {self._at}: what comes before is shown"


class CsvFile:
    """Reads the columns of numbers in a CSV file with a header, over the column of steps, or over the lines."""

    def __init__(self) -> None:
        self.curves: dict[str, Curve] = {}
        self.problem = ""
        self._data, self._names, self._steps_in, self._lines = b"", [""], -1, 0

    @property
    def rest(self) -> int:
        return 0  # writers of CSV need not end the last line

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the file."""
        *lines, self._data = (self._data + data).split(b"\n")
        for line in lines:
            if not self.problem:
                self._read(line.decode(errors="replace").strip("\r\ufeff"))
        if len(self._data) > _LONGEST_LINE:
            self._data = b""
            self.problem = f"has a line of more than {_LONGEST_LINE} bytes: what comes before is shown"

    def _read(self, line: str) -> None:
        try:
            cells = next(csv.reader([line]), [])
        except csv.Error as error:
            self.problem = f"has a line that is no CSV ({error}): what comes before is shown"
            return
        if not self._lines:
            self._names = [name.strip()[:_LONGEST_NAME] for name in cells]
            self._steps_in = next((at for at, name in enumerate(self._names) if name.lower() in _STEPS), -1)
        elif len(cells) == len(self._names):
            self._add([_number(cell) for cell in cells])
        self._lines += bool(cells)

    def _add(self, numbers: list[float | None]) -> None:
        step = numbers[self._steps_in] if self._steps_in >= 0 else self._lines
        for at, (name, number) in enumerate(zip(self._names, numbers, strict=True)):
            if at == self._steps_in or number is None or step is None or not math.isfinite(step):
                continue
            if name in self.curves or len(self.curves) < MOST_CURVES:
                self.curves.setdefault(name, Curve()).add(step, number)


def scalars(event: bytes) -> Iterator[tuple[str, int, float]]:
    """Yield name, step and value of each scalar of an event. Raises ValueError, IndexError, struct.error."""
    step, summaries = 0, []
    for number, value in _fields(event):
        if number == 2 and isinstance(value, int):
            step = value - (1 << 64) * (value >> 63)
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, value in _fields(summary):
            if number == 1 and isinstance(value, bytes):
                yield from ((tag, step, number) for tag, number in _scalar(value))


def _scalar(value: bytes) -> Iterator[tuple[str, float]]:
    """Yield name and value of a Summary.Value, if that is a scalar."""
    tag = ""
    for number, content in _fields(value):
        if not isinstance(content, bytes):
            continue
        if number == 1:
            tag = content.decode(errors="replace")[:_LONGEST_NAME]
        elif number == 2:
            yield tag, struct.unpack("<f", content)[0]
        elif number == 8:
            yield from ((tag, found) for found in _tensor(content))


def _tensor(tensor: bytes) -> Iterator[float]:
    """Yield the value of a tensor that has one float or double."""
    found = dict(_fields(tensor))
    form = {_FLOAT: "<f", _DOUBLE: "<d"}.get(found.get(1), "")  # type: ignore[arg-type]
    content = found.get(4) or found.get(5) or found.get(6)
    if form and isinstance(content, bytes) and len(content) == struct.calcsize(form):
        yield struct.unpack(form, content)[0]


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protocol buffer: whole numbers, and all else as bytes. Raises ValueError, IndexError."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if key & 7 == 2:
            size, at = _varint(message, at)
        else:
            size = {1: 8, 5: 4}.get(key & 7, len(message))
        if at + size > len(message):
            raise ValueError("cut short")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        value |= (message[at] & 0x7F) << shift
        at += 1
        if message[at - 1] < 0x80:
            return value & (1 << 64) - 1, at
    raise ValueError("a number that is too long")


def _masked_crc(data: bytes | bytearray) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ _POLYNOMIAL * (crc & 1)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
