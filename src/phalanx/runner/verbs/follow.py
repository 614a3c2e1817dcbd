"""Sends a job's output and states to the CLI as frames, from any position on, until the job has ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid
from phalanx.runner.files import state as states
from phalanx.runner.files.output import ENDED, OutputReader
from phalanx.runner.head.doorway import connect_follower
from phalanx.runner.names import OUTPUT as OUTPUT_DIRECTORY
from phalanx.runner.verbs.follow_frames import ENDED_PROCESS, HEADER, MAGIC, OUTPUT, PROCESS, STATE
from phalanx.runner.verbs.last_lines import first_of_last_lines

if TYPE_CHECKING:
    import socket
    from typing import Any, Dict, Optional, Sequence, Tuple

_FLUSH_BYTES = 1 << 18
_ENDS = (*states.FINAL, states.DAMAGED)
# A runner that is alive and does not answer: it is about to write its last state, or about to open its door.
_RUNNER_COMES_WITHIN_S = 0.1


def follow(
    directory: str,
    stack: str,
    start: str = "0",
    wait: bool = True,
    process: Optional[str] = None,
    lines: Optional[int] = None,
) -> int:
    """Write frames to stdout; returns 0. `process`: only the output of the one with this label.

    `start`: a position, or "end", or "last" (where the present attempt begins), or "attempt=N" (that one alone).
    `lines`: of what is there, only so much that its last lines are whole.
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
        pass  # the CLI has gone; the job goes on
    return 0


def _attempts(directory: str) -> Sequence[Dict[str, Any]]:
    try:
        return states.read(directory)["attempts"]
    except Invalid:
        return ()


def _span(reader: OutputReader, attempts: Sequence[Dict[str, Any]], start: str) -> Tuple[int, Optional[int]]:
    """From which position on, and before which (None: no end)."""
    if start == "end":
        return reader.end(), None
    begins = [attempt["position"] for attempt in attempts] or [0]
    if start == "last":
        return begins[-1], None
    if start.startswith("attempt="):
        number = int(start[len("attempt=") :])
        if number >= len(begins):
            sys.exit(f"there is no attempt {number}: the job has attempts 0 to {len(begins) - 1}")
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
        self._state: Dict[str, Any] = {}  # the last one that was sound
        self._told: Dict[str, Any] = {}
        self._news: Optional[socket.socket] = None
        self._damage = ""  # what is wrong with the output; no more of it is sent then

    def run(self, wait: bool) -> None:
        self._listen(wait)
        while True:
            # The state is read first: what was written before it became final is then there to be read.
            state = self._look(wait)
            self._pump()
            self._tell(state)
            if state.get("state") in _ENDS or not wait or self._is_over():
                return
            self._rest()

    def _listen(self, wait: bool) -> None:
        self._news = connect_follower(states.job_id_of(self._directory)) if wait else None

    def _look(self, wait: bool) -> Dict[str, Any]:
        """The state; of a record that is damaged the one before, while there is a runner that will write another."""
        try:
            self._state = states.read(self._directory)
            if self._news is None and self._state["state"] not in states.FINAL:
                self._state = self._settled(wait)
        except Invalid as error:
            if self._news is None:
                self._state = states.damaged(self._directory, error)
        return self._state

    def _settled(self, wait: bool) -> Dict[str, Any]:
        # Here, because `subprocess` is a sixth of this process's start and only trouble needs it.
        from phalanx.runner.head.settle import is_foreign, left_alone, settle, settle_patiently

        if is_foreign(self._state, self._stack):
            return left_alone(self._state)
        state = settle_patiently(self._directory) if wait else settle(self._directory)
        self._listen(wait)
        return state

    def _is_over(self) -> bool:
        """Was all read that was asked for? (An attempt that is over has an end; the present one has none.)"""
        return self._until is not None

    def _rest(self) -> None:
        """Wait for news, or for the runner's end. Raises BrokenPipeError when the reader of stdout has gone."""
        if self._news is None:
            time.sleep(_RUNNER_COMES_WITHIN_S)
            return
        poll = select.poll()
        poll.register(self._news, select.POLLIN)
        poll.register(1, 0)  # its errors alone
        for fd, _ in poll.poll():
            if fd == 1:
                raise BrokenPipeError
        try:
            is_there = self._news.recv(4096)
        except ConnectionResetError:  # it went before it had taken us in
            is_there = b""
        if not is_there:
            self._news.close()
            self._news = None

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
        """Processes that came meanwhile, among them this one. Raises Invalid."""
        for process in self._reader.refresh():
            self._send(PROCESS, json.dumps(process).encode(), self._reader.position, process["number"])
        self._reader.process(number)

    def _tell(self, state: Dict[str, Any]) -> None:
        if state and self._damage:
            state = {**state, "message": "; ".join(filter(None, (state["message"], self._damage)))}
        if state != self._told:
            self._told = state
            self._send(STATE, json.dumps(state).encode(), self._reader.position)
            self._flush()

    def _send(
        self, kind: int, payload: bytes, position: int, number: int = 0, time_ns: int = 0, stream: int = 0
    ) -> None:
        self._buffer += HEADER.pack(kind, stream, number, len(payload), position, time_ns) + payload
        if len(self._buffer) > _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        view = memoryview(self._buffer)
        while view:
            view = view[os.write(1, view) :]
        self._buffer = bytearray()
