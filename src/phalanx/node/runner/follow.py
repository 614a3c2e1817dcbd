"""Sends a job's output and states to the CLI as frames, from any position on, until the job has ended."""

from __future__ import annotations

import json
import os
import select
import struct
from typing import TYPE_CHECKING

from phalanx.node.runner import state as states
from phalanx.node.runner.doorway import wait_for_news
from phalanx.node.runner.output import ENDED, OutputReader

if TYPE_CHECKING:
    import socket
    from typing import Any, Dict, Optional

# kind, stream, process number, payload length, position in the index behind it, time in ns since 1970
HEADER = struct.Struct("<BBHIQQ")
MAGIC = b"\0phalanx-follow-1\n"
PROCESS = 1  # JSON line of output/processes
OUTPUT = 2  # raw bytes
ENDED_PROCESS = 3  # the process writes no more
STATE = 4  # JSON of state.json

_FLUSH_BYTES = 1 << 18


def follow(
    directory: str, position: int = 0, wait: bool = True, process: Optional[str] = None, at_end: bool = False
) -> int:
    """Write frames to stdout; returns 0. `process`: only the output of the one with this label."""
    reader = OutputReader(os.path.join(directory, "output"), position)
    if at_end:
        reader.position = reader.end()
    follower = _Follower(directory, reader, process)
    try:
        follower.run(wait)
    except BrokenPipeError:
        pass  # the CLI has gone; the job goes on
    return 0


class _Follower:
    def __init__(self, directory: str, reader: OutputReader, process: Optional[str]) -> None:
        self._directory = directory
        self._reader = reader
        self._process = process
        self._buffer = bytearray(MAGIC)
        self._state: Dict[str, Any] = {}

    def run(self, wait: bool) -> None:
        news = wait_for_news(os.path.basename(self._directory)) if wait else None
        while True:
            # The state is read first: what was written before it became final is then there to be read.
            state = states.read(self._directory)
            if wait and news is None and state["state"] not in states.FINAL:
                # Here, because `subprocess` is a sixth of this process's start and only trouble needs it.
                from phalanx.node.runner.settle import settle

                state = settle(self._directory)
            self._pump()
            self._tell(state)
            if state["state"] in states.FINAL or not wait:
                return
            news = self._rest(news)

    def _rest(self, news: Optional[socket.socket]) -> Optional[socket.socket]:
        """Wait for news; None when the runner has gone. Raises BrokenPipeError when the reader of stdout has."""
        if news is None:
            return None
        poll = select.poll()
        poll.register(news, select.POLLIN)
        poll.register(1, 0)  # its errors alone
        for fd, _ in poll.poll():
            if fd == 1:
                raise BrokenPipeError
        return news if news.recv(4096) else None

    def _pump(self) -> None:
        for position, record in self._reader.records():
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
