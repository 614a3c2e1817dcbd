"""Sends a job's output and states to the client as frames, from any position, until the job has ended."""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import select
import sys
import time
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid, Newer
from phalanx.runner.files import state as states
from phalanx.runner.files.output import ENDED, OutputReader
from phalanx.runner.head.membership import read_hung
from phalanx.runner.head.runner_socket import connect_follower
from phalanx.runner.names import OUTPUT as OUTPUT_DIRECTORY
from phalanx.runner.verbs.follow_frames import ENDED_PROCESS, HEADER, MAGIC, OUTPUT, PROCESS, STATE
from phalanx.runner.verbs.last_lines import first_of_last_lines

if TYPE_CHECKING:
    import socket
    from typing import Optional, Sequence, Tuple

    from phalanx.runner.files.job_status import Attempt, JobStatus

_FLUSH_BYTES = 1 << 18
# A runner that lives and does not answer is about to write its last state, or to open its socket.
_RETRY_S = 0.1
# A shared directory that takes longer for a few reads does not answer. Without updates it is read this often.
_SILENT_AFTER_S = 10.0
_WATCH_EVERY_S = 1.0


def follow(
    directory: str,
    stack: str,
    start: str = "0",
    wait: bool = True,
    process: Optional[str] = None,
    lines: Optional[int] = None,
) -> int:
    """Write frames to stdout; return 0. `process` selects the one with this label.

    `start`: a position, "end", "last" (where the present attempt begins), or "attempt=N" (only that one).
    `lines`: limits the output so far to its end, with at least this many complete lines.
    """
    output = os.path.join(directory, OUTPUT_DIRECTORY)
    reader = OutputReader(output)
    reader.position, until = _span(reader, _attempts(directory), start)
    if lines is not None:
        span = range(reader.position, reader.end() if until is None else until)
        # Damage is reported where the output is sent.
        with contextlib.suppress(Invalid):
            reader.position = first_of_last_lines(OutputReader(output), span, lines, process)
    follower = _Follower(directory, stack, reader, process, until)
    try:
        follower.run(wait)
    except BrokenPipeError:
        pass  # the client is gone; the job continues
    return 0


def _attempts(directory: str) -> Sequence[Attempt]:
    try:
        return states.read(directory).attempts
    except Newer:
        raise
    except Invalid:
        return ()


def _span(reader: OutputReader, attempts: Sequence[Attempt], start: str) -> Tuple[int, Optional[int]]:
    """Return the positions of the first record and after the last one (None: no end)."""
    if start == "end":
        return reader.end(), None
    begins = [attempt.position for attempt in attempts] or [0]
    if start == "last":
        return begins[-1], None
    if start.startswith("attempt="):
        number = int(start[len("attempt=") :])
        if number >= len(begins):
            sys.exit(f"there is no attempt {number}: the job's attempts are 0 to {len(begins) - 1}")
        return begins[number], begins[number + 1] if number + 1 < len(begins) else None
    return int(start), None


class _Follower:
    def __init__(
        self, directory: str, stack: str, reader: OutputReader, process: Optional[str], until: Optional[int] = None
    ) -> None:
        self._directory = directory
        self._stack = stack
        self._reader = reader
        self._process = process
        self._until = until
        self._buffer = bytearray(MAGIC)
        self._status: Optional[JobStatus] = None  # the last valid one
        self._sent: Optional[JobStatus] = None
        self._updates: Optional[socket.socket] = None
        self._damage = ""  # what is wrong with the output, which is then no longer sent
        self._reads_since = 0.0  # 0: it waits for an update
        self._is_over = False
        self._writing = _thread.allocate_lock()

    def run(self, wait: bool) -> None:
        _thread.start_new_thread(self._watch, ())
        try:
            self._run(wait)
        finally:
            self._is_over = True

    def _run(self, wait: bool) -> None:
        self._listen(wait)
        while True:
            self._reads_since = time.monotonic()
            # The status is read first: when it is final, all output is written and can be read.
            status = self._read_status(wait)
            self._pump()
            self._report(status)
            if (status and status.state.final) or not wait or self._is_past():
                return
            self._reads_since = 0.0
            self._wait_for_update()

    def _watch(self) -> None:
        """Report, in a thread of its own, that the shared directory does not answer, once for each silence.

        That is, here, or on other nodes of the job.
        """
        told, told_of = 0.0, ""
        while not self._is_over:
            time.sleep(_WATCH_EVERY_S)
            since = self._reads_since
            is_late = since not in (0.0, told) and time.monotonic() > since + _SILENT_AFTER_S
            if is_late and self._sent and not self._is_over:
                told = since
                self._report_silence(self._sent, "")
            hung = ", ".join(sorted(read_hung().intersection(self._sent.ranks))) if self._sent else ""
            if hung not in ("", told_of) and self._sent and not self._is_over:
                self._report_silence(self._sent, f" on {hung}")
            told_of = hung

    def _report_silence(self, sent: JobStatus, where: str) -> None:
        shared = os.path.abspath(os.path.join(self._directory, *[os.pardir] * 3))
        message = f"the shared directory {shared} does not answer{where}; the job goes on when it does"
        self._sent = sent._replace(message=message)
        payload = json.dumps(self._sent.to_record()).encode()
        with self._writing, contextlib.suppress(OSError):
            os.write(1, HEADER.pack(STATE, 0, 0, len(payload), 0, 0) + payload)

    def _listen(self, wait: bool) -> None:
        self._updates = connect_follower(states.job_id_of(self._directory)) if wait else None

    def _read_status(self, wait: bool) -> Optional[JobStatus]:
        """Return the status; if its record is damaged, the previous one while a runner can write another."""
        try:
            self._status = states.read(self._directory)
            if self._updates is None and not self._status.state.final:
                self._status = self._settled(self._status, wait)
        except Invalid as error:
            if self._updates is None:
                self._status = states.damaged(self._directory, error)
        return self._status

    def _settled(self, status: JobStatus, wait: bool) -> JobStatus:
        # Here, because `subprocess` takes a sixth of this process's start and only failures need it.
        from phalanx.runner.head.settle import is_foreign, left_alone, settle, settle_patiently

        if is_foreign(status, self._stack):
            return left_alone(status)
        status = settle_patiently(self._directory) if wait else settle(self._directory)
        self._listen(wait)
        return status

    def _is_past(self) -> bool:
        """Return whether all requested output was read: an attempt that has ended is followed only to its end."""
        return self._until is not None

    def _wait_for_update(self) -> None:
        """Wait for an update, or for the runner's end. Raises BrokenPipeError when the reader of stdout is gone."""
        if self._updates is None:
            time.sleep(_RETRY_S)
            return
        poll = select.poll()
        poll.register(self._updates, select.POLLIN)
        poll.register(1, 0)  # only its errors
        ready = dict(poll.poll(_SILENT_AFTER_S * 1000))
        if 1 in ready:
            raise BrokenPipeError
        if not ready:
            return
        try:
            update = self._updates.recv(4096)
        except ConnectionResetError:  # the runner ended before it accepted the connection
            update = b""
        if not update:
            self._updates.close()
            self._updates = None

    def _pump(self) -> None:
        if self._damage:
            return
        try:
            self._send_output()
        except Invalid as error:
            self._damage = f"damaged output: {error}"
        self._flush()

    def _send_output(self) -> None:
        for position, record in self._reader.records():
            if self._until is not None and position > self._until:
                break
            time_ns, _, length, number, stream = record
            if number >= len(self._reader.processes):
                self._announce(number)
            if self._process is not None and self._reader.processes[number]["label"] != self._process:
                continue
            if stream == ENDED:
                self._send(ENDED_PROCESS, b"", position, number, time_ns, length & 0xFF)
            else:
                self._send(OUTPUT, self._reader.data(record), position, number, time_ns, stream)

    def _announce(self, number: int) -> None:
        """Send the processes that were added since, among them this one. Raises Invalid."""
        for process in self._reader.refresh():
            self._send(PROCESS, json.dumps(process).encode(), self._reader.position, process["number"])
        self._reader.process(number)

    def _report(self, status: Optional[JobStatus]) -> None:
        if status and self._damage:
            status = status._replace(message="; ".join(filter(None, (status.message, self._damage))))
        if status and status != self._sent:
            self._sent = status
            self._send(STATE, json.dumps(status.to_record()).encode(), self._reader.position)
            self._flush()

    def _send(
        self, kind: int, payload: bytes, position: int, number: int = 0, time_ns: int = 0, stream: int = 0
    ) -> None:
        self._buffer += HEADER.pack(kind, stream, number, len(payload), position, time_ns) + payload
        if len(self._buffer) > _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        view = memoryview(self._buffer)
        with self._writing:
            while view:
                view = view[os.write(1, view) :]
        self._buffer = bytearray()
