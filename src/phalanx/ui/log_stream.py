"""The output of a job as server-sent events: from `phalanx logs` in a process of its own, which ends with the page.

However much a job writes, the page gets a bounded number of lines a second: the last ones, with how many were left out.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import IO

from phalanx.cli.terminal import plain
from phalanx.ssh.bounded import file_without_name

# A line reaches the page within twice this time.
_EVERY_S = 0.1
_MOST_LINES = 200
_LONGEST_LINE = 2000
_LONGEST_PENDING = 1 << 20
_READ_BYTES = 1 << 18
_SIGN_OF_LIFE_S = 10.0
# What `phalanx logs --timestamps` prints.
_LINE = re.compile(rb"(?:(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) )?(?:\[([^\]]{1,200})\] )?(.*)", re.DOTALL)
_ERROR = re.compile(r"^error: (.*)", re.MULTILINE)


class Batch:
    """The last lines that came since the previous event, of those with a text, and how many others came."""

    def __init__(self, find: str = "") -> None:
        self._find = find.lower().encode()
        self._rest = b""
        self._lines: deque[bytes] = deque(maxlen=_MOST_LINES)
        self._count = 0

    def add(self, data: bytes) -> None:
        """Add bytes of the output."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_PENDING:
            lines, self._rest = [*lines, self._rest], b""
        if self._find:
            lines = [line for line in lines if self._find in line.lower()]
        self._lines.extend(lines[-_MOST_LINES:])
        self._count += len(lines)

    def end(self) -> None:
        """Take what is left as a line."""
        if self._rest:
            self.add(b"\n")

    def taken(self) -> bytes:
        """Return an event with these lines, and forget them; nothing if there are none."""
        if not self._count:
            return b""
        skipped, lines = self._count - len(self._lines), list(map(parsed, self._lines))
        self._lines.clear()
        self._count = 0
        return event("lines", {"skipped": skipped, "lines": lines})


def parsed(line: bytes) -> tuple[str, str, str]:
    """Return time, rank and text of a line; control characters are escaped, and colours removed."""
    found = _LINE.fullmatch(line)
    assert found
    text = found[3].rstrip(b"\r").rpartition(b"\r")[2][: 4 * _LONGEST_LINE].decode(errors="replace")
    cut = text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]} …"
    return (found[1] or b"").decode()[11:23], plain((found[2] or b"").decode(errors="replace")), plain(cut)


def event(kind: str, content: object) -> bytes:
    """Return a server-sent event. JSON has no line break."""
    return f"event: {kind}\ndata: {json.dumps(content)}\n\n".encode()


async def events(argv: Sequence[str], find: str, is_over: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the output of this command as events until it ends, and `end` with the reason if it failed.

    It ends early when `is_over`, as the server does.
    """
    with file_without_name() as said:
        process = await _started(argv, said)
        batch = Batch(find)
        reading = asyncio.ensure_future(_read(process, batch))
        try:
            quiet_s = 0.0
            yield b": here\n\n"
            while not (reading.done() or is_over()):
                await asyncio.wait({reading}, timeout=_EVERY_S)
                if reading.done():
                    batch.end()
                quiet_s += _EVERY_S
                if taken := batch.taken():
                    quiet_s = 0.0
                    yield taken
                elif quiet_s > _SIGN_OF_LIFE_S:
                    quiet_s = 0.0
                    yield b": alive\n\n"
            yield event("end", {"error": _error(said)})
        finally:
            reading.cancel()
            _end(process)


async def text(argv: Sequence[str], is_over: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the output of this command as it is, as fast as it is taken; it ends early when `is_over`."""
    with file_without_name() as said:
        process = await _started(argv, said)
        assert process.stdout
        try:
            while not is_over() and (data := await process.stdout.read(_READ_BYTES)):
                yield data
            yield _error(said).encode()
        finally:
            _end(process)


async def _started(argv: Sequence[str], said: IO[bytes]) -> asyncio.subprocess.Process:
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    environment = {**os.environ, "NO_COLOR": "1"}
    return await asyncio.create_subprocess_exec(
        *argv, stdin=null, stdout=pipe, stderr=said, limit=_READ_BYTES, env=environment, start_new_session=True
    )


async def _read(process: asyncio.subprocess.Process, batch: Batch) -> None:
    assert process.stdout
    while data := await process.stdout.read(_READ_BYTES):
        batch.add(data)


def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        try:
            process.kill()
        except ProcessLookupError:
            pass  # it has ended


def _error(said: IO[bytes]) -> str:
    said.seek(0)
    found = _ERROR.findall(said.read(_READ_BYTES).decode(errors="replace"))
    return plain(found[-1]) if found else ""
