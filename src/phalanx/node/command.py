"""Run a command with a deadline and keep its output, for the boot log and the failure report."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import time
from typing import Any, Callable, Sequence

TAIL_BYTES = 2048
_PAUSE_S = 3


class CommandError(Exception):
    """A command failed. `status` is 127 if it could not be started, 124 if it timed out."""

    def __init__(self, command: str, status: int, output: str) -> None:
        super().__init__(f"{command}: exit {status}: {output}")
        self.command, self.status, self.output = command, status, output


def run(
    argv: Sequence[str],
    timeout_s: float,
    say: Callable[[str], None] = lambda _: None,
    most_bytes: int = resource.RLIM_INFINITY,
    **options: Any,
) -> str:
    """Run `argv` and return its output (both streams); pass each line to `say` as it comes. Raises CommandError.

    A command that writes more than `most_bytes`, to its output or any file, is ended.
    """
    # A memory file, not a pipe: a service that the command starts would keep a pipe open for ever.
    output = os.memfd_create("output")
    try:
        status = _run(argv, output, timeout_s, say, most_bytes, options)
        text = _read(output, 0)
    finally:
        os.close(output)
    if status:
        raise CommandError(" ".join(argv), status, text[-TAIL_BYTES:].strip() or "no output")
    return text


def insist(command: list[str], timeout_s: float, passing: str, end: float, say: Callable[[str], None]) -> str:
    """Run a command until it succeeds; return its output. Until `end`, repeat a failure that matches `passing`."""
    while True:
        try:
            return run(command, timeout_s)
        except CommandError as error:
            if not re.search(passing, error.output, re.IGNORECASE) or time.monotonic() > end:
                raise
            say(f"{error}; trying again")
            time.sleep(_PAUSE_S)


def _run(
    argv: Sequence[str],
    output: int,
    timeout_s: float,
    say: Callable[[str], None],
    most_bytes: int,
    options: dict[str, Any],
) -> int:
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, **options
        )
    except OSError as error:
        os.write(output, str(error).encode())
        return 127
    if most_bytes != resource.RLIM_INFINITY:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    shown, deadline = 0, time.monotonic() + timeout_s
    while True:
        try:
            status = process.wait(0.5)
        except subprocess.TimeoutExpired:
            status = None
        shown = _say_new(output, shown, say, status is not None)
        if status is not None:
            return status
        if time.monotonic() > deadline:
            os.killpg(process.pid, 9)
            process.wait()
            os.write(output, b"\ntime is up after %.1f s" % timeout_s)
            return 124


def _say_new(output: int, shown: int, say: Callable[[str], None], ended: bool) -> int:
    """Pass the lines after offset `shown` to `say`, the last one only if it is complete; return the new offset."""
    text = _read(output, shown)
    whole = len(text) if ended else text.rfind("\n") + 1
    for line in text[:whole].splitlines():
        say(line)
    return shown + len(text[:whole].encode("utf-8", "surrogateescape"))


def _read(output: int, offset: int) -> str:
    size = os.fstat(output).st_size - offset
    return os.pread(output, size, offset).decode("utf-8", "surrogateescape") if size > 0 else ""
