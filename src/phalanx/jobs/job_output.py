"""Decodes a job's output from the head: frames become whole lines, in merged order, each with its process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from phalanx.errors import JobError
from phalanx.node.validate import Invalid, parse
from phalanx.runner.files.output import LONGEST_DESCRIPTION
from phalanx.runner.files.record import MOST_BYTES
from phalanx.runner.files.schema import output_process
from phalanx.runner.frames import STDERR
from phalanx.runner.verbs import follow_frames as wire

# A line without an end is shown in pieces of this size, so that memory stays bounded.
LONGEST_LINE_BYTES = 16 << 20
# Of all lines together, as there may be 65,536 processes; the longest are shown in pieces when it is more.
MOST_PENDING_BYTES = 64 << 20
_LONGEST_PREAMBLE = 1 << 16


class OutputLine(NamedTuple):
    """One line of one process. `process` is its rank, or the engine's label; `data` excludes the line's end (LF).

    `is_draft`: the line is not complete, and its process overwrites it, as progress bars do; `data` is what a terminal
    would show of it now. Without `has_end`, its process ended within the line, or it is a piece of a very long one.
    """

    process: str
    node: str
    stream: str
    time_s: float
    data: bytes
    is_draft: bool = False
    has_end: bool = True


class LineBuffer:
    """Cuts the bytes of one stream into lines. A carriage return does not end a line: it overwrites it."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are now complete. `pieces` returns what is too long to wait for its end."""
        lines: list[bytes] = []
        # A long line comes in many pieces: only a piece that may end it is searched together with the others.
        if b"\n" in data:
            *lines, data = (bytes(self._rest) + data).split(b"\n")
            self._rest.clear()
        self._rest += data
        return lines

    def pieces(self) -> list[bytes]:
        """Return the beginnings of a line that is too long."""
        pieces: list[bytes] = []
        while len(self._rest) > LONGEST_LINE_BYTES:
            pieces.append(bytes(self._rest[:LONGEST_LINE_BYTES]))
            del self._rest[:LONGEST_LINE_BYTES]
        return pieces

    def end(self) -> list[bytes]:
        """Return what is left without a line end."""
        rest = bytes(self._rest)
        self._rest.clear()
        return [rest] if rest else []

    def __len__(self) -> int:
        return len(self._rest)

    def draft(self) -> bytes:
        """Return what a terminal shows of an incomplete line that is being overwritten; else nothing."""
        return last_state(self._rest) if b"\r" in self._rest else b""


def last_state(line: bytes | bytearray) -> bytes:
    """Return what a terminal finally shows of a line that was overwritten."""
    return bytes(line.rstrip(b"\r").rpartition(b"\r")[2])


def last_of_bar(line: bytes) -> bytes:
    """Return the same for a file; a line that ends in CR LF, as on Windows, keeps its CR."""
    return last_state(line) + b"\r" * line.endswith(b"\r")


class FollowDecoder:
    """Turns the bytes of `runner.pyz follow` into OutputLines and states (dicts).

    Another connection continues at `position`, with the incomplete lines that are kept here.
    `drafts`: lines come while they are being overwritten, too.
    """

    def __init__(self, drafts: bool = False) -> None:
        self.position = 0
        self._drafts = drafts
        self._data = b""
        self._began = False
        self._processes: dict[int, dict[str, Any]] = {}
        # The lines that have no end yet, by process and by whether they are of standard error.
        self._lines: dict[tuple[int, bool], LineBuffer] = {}
        self._pending = 0

    def restart(self) -> None:
        """Begin a new connection, which repeats what was cut off with the old one."""
        self._data, self._began = b"", False

    def feed(self, data: bytes) -> Iterator[OutputLine | dict[str, Any]]:
        """Yield the lines and states that are now complete. Raises JobError for bytes that are not frames."""
        try:
            yield from self._feed(data)
        except Invalid as error:
            raise JobError(f"the head sent invalid output: a frame that {error}", code="invalid-answer") from error

    def _feed(self, data: bytes) -> Iterator[OutputLine | dict[str, Any]]:
        self._data += data
        if not self._began and not self._begin():
            return
        start, size = 0, wire.HEADER.size
        while len(self._data) - start >= size:
            kind, stream, number, length, position, time_ns = wire.HEADER.unpack_from(self._data, start)
            end = start + size + length
            if length > MOST_BYTES:
                raise Invalid(f"claims {length} bytes")
            if end > len(self._data):
                break
            payload = self._data[start + size : end]
            start = end
            self.position = max(self.position, position)
            yield from self._event(kind, stream, number, time_ns / 1e9, payload)
        self._data = self._data[start:]

    def _begin(self) -> bool:
        """Skip what a login script printed before the first frame."""
        before, magic, after = self._data.partition(wire.MAGIC)
        if not magic and len(before) > _LONGEST_PREAMBLE:
            raise JobError(
                f"the head sent invalid output: {before[:200]!r}",
                "Check whether a login script prints there.",
                code="invalid-answer",
            )
        self._began = bool(magic)
        if magic:
            self._data = after
        return self._began

    def _event(
        self, kind: int, stream: int, number: int, time_s: float, payload: bytes
    ) -> Iterator[OutputLine | dict[str, Any]]:
        if kind == wire.PROCESS:
            if len(payload) > LONGEST_DESCRIPTION:
                raise Invalid(f"describes a process in {len(payload)} bytes")
            self._processes[number] = output_process(parse(payload))
        elif kind == wire.STATE:
            state = parse(payload)
            if not isinstance(state, dict):
                raise Invalid("is not a job's state")
            yield state
        elif kind == wire.OUTPUT:
            yield from self._output(number, stream == STDERR, time_s, payload)
        elif kind == wire.ENDED_PROCESS:
            yield from self._flush([(number, False), (number, True)], time_s)

    def _output(self, number: int, is_error: bool, time_s: float, payload: bytes) -> Iterator[OutputLine]:
        buffer = self._lines.setdefault((number, is_error), LineBuffer())
        before = len(buffer)
        lines, pieces = buffer.feed(payload), buffer.pieces()
        self._pending += len(buffer) - before
        yield from self._as_lines(number, is_error, time_s, lines)
        yield from self._as_lines(number, is_error, time_s, pieces, has_end=False)
        if self._drafts and (draft := buffer.draft()):
            yield from self._as_lines(number, is_error, time_s, [draft], is_draft=True)
        if self._pending > MOST_PENDING_BYTES:
            # More than one at a time, so that many short ones are not sorted at each frame.
            longest_first = iter(sorted(self._lines, key=lambda one: len(self._lines[one]), reverse=True))
            while self._pending > MOST_PENDING_BYTES // 2:
                yield from self._flush([next(longest_first)], time_s)

    def _flush(self, keys: list[tuple[int, bool]], time_s: float) -> Iterator[OutputLine]:
        """Forget these lines, and yield what is there of them."""
        for key in keys:
            if (buffer := self._lines.pop(key, None)) is not None:
                self._pending -= len(buffer)
                yield from self._as_lines(*key, time_s, buffer.end(), has_end=False)

    def _as_lines(
        self,
        number: int,
        is_error: bool,
        time_s: float,
        lines: list[bytes],
        is_draft: bool = False,
        has_end: bool = True,
    ) -> Iterator[OutputLine]:
        if number not in self._processes:
            raise Invalid(f"belongs to process {number}, which was not announced")
        process = self._processes[number]
        name = "stderr" if is_error else "stdout"
        for line in lines:
            yield OutputLine(process["label"], process["node"], name, time_s, line, is_draft, has_end)
