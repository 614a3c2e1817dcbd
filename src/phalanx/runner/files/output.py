"""A job's output: one file per process with its raw bytes, and one index with the order of all records.

output/processes     one JSON line per process: {"number", "label", "node", "file"}
output/rank-3.log    what rank 3 wrote, both streams, byte for byte; after the job's first restart, rank-3.restart-1.log
output/server_0.log  the output of a process that has a role, or is an engine
output/index         24-byte records in the order of arrival on the head: time, offset, length, process, stream
"""

from __future__ import annotations

import json
import os
import re
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid, parse
from phalanx.runner.files.record import MOST_BYTES, open_to_append, open_to_read, read_text
from phalanx.runner.files.schema import output_process

if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Tuple

    # time in ns since 1970 on the head, offset in the process's file, length, process number, stream
    Record = Tuple[int, int, int, int, int]

RECORD = struct.Struct("<QQIHBx")
# The stream of a record that marks a process's end; `length` is its exit code, or 128 + the signal's number.
ENDED = 255
LONGEST_DESCRIPTION = 2048
"""The bytes of a process's description, which the laptop takes as well."""
_INDEX = "index"
_PROCESSES = "processes"
_RECORDS_AT_ONCE = 4096
_LONGEST_SAFE_NAME = 100
_LARGEST_OFFSET = (1 << 63) - 1
_FRAME = re.compile(r"\*{10,}")
_BOX_LINES = 10


def file_name(label: str, is_rank: bool, attempt: int = 0) -> str:
    """Return the file name for a process. Any label (ours, or an engine's rank) becomes a safe name."""
    safe = re.sub(r"[^\w@.-]", "_", label, flags=re.ASCII)[:_LONGEST_SAFE_NAME]
    restart = f".restart-{attempt}" if attempt else ""
    return f"rank-{safe}{restart}.log" if is_rank else f"{safe}{restart}.log"


class OutputWriter:
    """Appends to the output, on the head. A full disk ends the writing (see `.error`), never the job.

    `attempt` (0 at first) is part of the files' names; `position` is the next record's position in the index.
    """

    def __init__(self, directory: str) -> None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self.error = ""
        self.attempt = 0
        self._directory = directory
        earlier = OutputReader(directory)
        self.position = earlier.end()
        self._index = self._open(_INDEX)
        self._processes = self._open(_PROCESSES)
        self._files: Dict[str, List[int]] = {}  # file name → fd, size
        self._of = [process["file"] for process in earlier.refresh()]  # process number → file name
        self._records = bytearray()

    def add(self, label: str, node: str, is_rank: bool) -> int:
        """Add a process; return its number in the index."""
        name = file_name(label, is_rank, self.attempt)
        number = len(self._of)
        self._of.append(name)
        if name not in self._files:
            fd = self._open(name)
            self._files[name] = [fd, os.fstat(fd).st_size]
        self._write(self._processes, _described(number, label, node, name))
        return number

    def write(self, number: int, stream: int, data: bytes, listed: bool = True) -> None:
        """Keep bytes that the process wrote. The next flush adds them to the index, unless not `listed`."""
        file = self._files[self._of[number]]
        if not self._write(file[0], data):
            return
        if listed:
            self._records += RECORD.pack(time.time_ns(), file[1], len(data), number, stream)
        file[1] += len(data)

    def adopt(self, label: str, node: str, source: str, name: str) -> int:
        """Add a process of another job, whose file `source` gets this name here, too; return its number.

        Raises OSError; then it is not added.
        """
        with suppress(FileExistsError):
            os.link(source, os.path.join(self._directory, name), follow_symlinks=False)
        number = len(self._of)
        self._of.append(name)
        self._write(self._processes, _described(number, label, node, name))
        return number

    def repeat(self, record: Record) -> None:
        """Add a record of an adopted process to the index, with the next flush."""
        self._records += RECORD.pack(*record)

    def ended(self, number: int, code: int) -> None:
        """Record that the process has ended."""
        self._records += RECORD.pack(time.time_ns(), 0, code if code >= 0 else 128 - code, number, ENDED)

    def flush(self) -> bool:
        """Make what was written visible to readers; return False when there was nothing."""
        if not self._records:
            return False
        self._write(self._index, bytes(self._records))
        self.position += len(self._records) // RECORD.size
        self._records.clear()
        return True

    def sync(self) -> None:
        """Sync everything to the disk, so that it survives a power failure; may take some ms for each file."""
        for fd in (*(file[0] for file in self._files.values()), self._processes, self._index):
            try:
                os.fdatasync(fd)
            except OSError:
                pass  # readers report what is damaged

    def tail(self, number: int, lines: int) -> List[str]:
        """Return the last lines of a process's file, without a box of stars at its end."""
        name = self._of[number]
        with open(os.path.join(self._directory, name), "rb") as file:
            file.seek(max(0, self._files[name][1] - (64 << 10)))
            found = file.read().decode(errors="replace").removesuffix("\n").split("\n")
        # Of a line that was overwritten, as progress bars do, the last state.
        return _without_box([line.rstrip("\r").rpartition("\r")[2] for line in found])[-lines:]

    def _open(self, name: str) -> int:
        return open_to_append(os.path.join(self._directory, name))

    def _write(self, fd: int, data: bytes) -> bool:
        if self.error:
            return False
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        except OSError as error:
            self.error = f"later output was not kept: {error.strerror}"
            return False
        return True


def _described(number: int, label: str, node: str, name: str) -> bytes:
    return json.dumps({"number": number, "label": label, "node": node, "file": name}).encode() + b"\n"


def _without_box(lines: List[str]) -> List[str]:
    """Remove blank lines at the end, and a box of stars: ChainerMN prints one after the traceback that matters."""
    end = len(lines)
    while end and not lines[end - 1].strip():
        end -= 1
    frames = [number for number in range(max(0, end - _BOX_LINES), end) if _FRAME.fullmatch(lines[number])]
    is_box = len(frames) > 1 and frames[-1] == end - 1
    return _without_box(lines[: frames[-2]]) if is_box else lines[:end]


class OutputReader:
    """Reads the output while it grows. `position` counts index records; a later reader can continue from it."""

    def __init__(self, directory: str, position: int = 0) -> None:
        self.position = position
        self._directory = directory
        self._files: Dict[str, int] = {}
        self.processes: List[Dict[str, Any]] = []

    def records(self) -> Iterator[Tuple[int, Record]]:
        """Yield (position after it, record) of all records that have not been read yet. Raises Invalid."""
        try:
            with os.fdopen(open_to_read(os.path.join(self._directory, _INDEX)), "rb") as file:
                file.seek(self.position * RECORD.size)
                yield from self._records(file)
        except FileNotFoundError:
            return

    def refresh(self) -> List[Dict[str, Any]]:
        """Return the processes that were added since the last call. Raises Invalid."""
        known = len(self.processes)
        try:
            text = read_text(os.path.join(self._directory, _PROCESSES))
        except FileNotFoundError:
            return []
        # The last line may be incomplete.
        for line in text.split("\n")[known:-1]:
            self.processes.append(self._process(line))
        return self.processes[known:]

    def _process(self, line: str) -> Dict[str, Any]:
        if len(line.encode()) > LONGEST_DESCRIPTION:
            raise Invalid(f"a process is described in {len(line)} characters")
        process = output_process(parse(line))
        if process["number"] != len(self.processes):
            raise Invalid(f"process {process['number']} is listed in place of {len(self.processes)}")
        return process

    def data(self, record: Record) -> bytes:
        """Return the bytes of an output record. Raises Invalid."""
        _, offset, length, number, _ = record
        if length > MOST_BYTES or offset > _LARGEST_OFFSET:
            raise Invalid(f"{length} bytes at once, at {offset}")
        name = self.processes[number]["file"]
        if name not in self._files:
            self._files[name] = self._open(name)
        data = os.pread(self._files[name], length, offset)
        if len(data) < length:  # the power failed before everything was on the disk
            raise Invalid(f"{name} ends before what was written to it")
        return data

    def _open(self, name: str) -> int:
        try:
            return open_to_read(os.path.join(self._directory, name))
        except FileNotFoundError as error:
            raise Invalid(f"{name} is gone") from error

    def process(self, number: int) -> Dict[str, Any]:
        """Return the process with this number. Raises Invalid."""
        if number >= len(self.processes):
            raise Invalid(f"no process has the number {number}")
        return self.processes[number]

    def backwards(self, span: range) -> Iterator[Tuple[int, Record]]:
        """Yield (position before it, record) of the records at these positions, the last first. Raises Invalid."""
        for stop in range(span.stop, span.start, -_RECORDS_AT_ONCE):
            start = max(span.start, stop - _RECORDS_AT_ONCE)
            with os.fdopen(open_to_read(os.path.join(self._directory, _INDEX)), "rb") as file:
                file.seek(start * RECORD.size)
                block = file.read((stop - start) * RECORD.size)
            yield from reversed(list(enumerate(_unpacked(block), start)))

    def end(self) -> int:
        """Return the position after the last record."""
        try:
            return os.stat(os.path.join(self._directory, _INDEX)).st_size // RECORD.size
        except FileNotFoundError:
            return 0

    def _records(self, file: Any) -> Iterator[Tuple[int, Record]]:
        while True:
            block = file.read(_RECORDS_AT_ONCE * RECORD.size)
            for record in _unpacked(block):
                self.position += 1
                yield self.position, record
            if len(block) % RECORD.size or not block:
                return


def _unpacked(block: bytes) -> Iterator[Record]:
    """Return the complete records."""
    return RECORD.iter_unpack(block[: len(block) - len(block) % RECORD.size])  # type: ignore[return-value]
