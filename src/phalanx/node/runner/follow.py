"""Sends a job's output and states to the CLI as frames, from any position on, until the job has ended."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import TYPE_CHECKING

from phalanx.node.runner import state as states
from phalanx.node.runner.doorway import wait_for_news
from phalanx.node.runner.follow_frames import ENDED_PROCESS, HEADER, MAGIC, OUTPUT, PROCESS, STATE
from phalanx.node.runner.output import ENDED, OutputReader

if TYPE_CHECKING:
    import socket
    from typing import Any, Dict, List, Optional, Tuple

_FLUSH_BYTES = 1 << 18
# A runner that is alive and does not answer: it is about to write its last state, or about to open its door.
_RUNNER_COMES_WITHIN_S = 0.1


def follow(directory: str, start: str = "0", wait: bool = True, process: Optional[str] = None) -> int:
    """Write frames to stdout; returns 0. `process`: only the output of the one with this label.

    `start`: a position, or "end", or "last" (where the present attempt begins), or "attempt=N" (that one alone).
    """
    reader = OutputReader(os.path.join(directory, "output"))
    reader.position, until = _span(reader, states.read(directory)["attempts"], start)
    follower = _Follower(directory, reader, process, until)
    try:
        follower.run(wait)
    except BrokenPipeError:
        pass  # the CLI has gone; the job goes on
    return 0


def _span(reader: OutputReader, attempts: List[Dict[str, Any]], start: str) -> Tuple[int, Optional[int]]:
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
        self, directory: str, reader: OutputReader, process: Optional[str], until: Optional[int] = None
    ) -> None:
        self._directory = directory
        self._reader = reader
        self._process = process
        self._until = until
        self._buffer = bytearray(MAGIC)
        self._state: Dict[str, Any] = {}

    def run(self, wait: bool) -> None:
        news = wait_for_news(os.path.basename(self._directory)) if wait else None
        while True:
            # The state is read first: what was written before it became final is then there to be read.
            state = states.read(self._directory)
            if news is None and state["state"] not in states.FINAL:
                # Here, because `subprocess` is a sixth of this process's start and only trouble needs it.
                from phalanx.node.runner.settle import settle, settle_patiently

                state = settle_patiently(self._directory) if wait else settle(self._directory)
                news = wait_for_news(os.path.basename(self._directory)) if wait else None
            self._pump()
            self._tell(state)
            if state["state"] in states.FINAL or not wait or self._is_over():
                return
            news = self._rest(news)

    def _is_over(self) -> bool:
        """Was all read that was asked for? (An attempt that is over has an end; the present one has none.)"""
        return self._until is not None

    def _rest(self, news: Optional[socket.socket]) -> Optional[socket.socket]:
        """Wait for news; None when the runner has gone. Raises BrokenPipeError when the reader of stdout has."""
        if news is None:
            time.sleep(_RUNNER_COMES_WITHIN_S)
            return None
        poll = select.poll()
        poll.register(news, select.POLLIN)
        poll.register(1, 0)  # its errors alone
        for fd, _ in poll.poll():
            if fd == 1:
                raise BrokenPipeError
        try:
            return news if news.recv(4096) else None
        except ConnectionResetError:  # it went before it had taken us in
            return None

    def _pump(self) -> None:
        for position, record in self._reader.records():
            if self._until is not None and position > self._until:
                break
            time_ns, _, length, number, stream = record
            while number >= len(self._reader.processes):
                self._announce()
            if self._process is not None and self._reader.processes[number]["label"] != self._process:
                continue
            if stream == ENDED:
                self._send(ENDED_PROCESS, b"", position, number, time_ns, length & 0xFF)
            else:
                self._send(OUTPUT, self._reader.data(record), position, number, time_ns, stream)
        self._flush()

    def _announce(self) -> None:
        for process in self._reader.refresh():
            self._send(PROCESS, json.dumps(process).encode(), self._reader.position, process["number"])

    def _tell(self, state: Dict[str, Any]) -> None:
        if state != self._state:
            self._state = state
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
