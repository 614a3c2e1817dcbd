"""Run a program that ends with its caller, and capture at most 64 MiB of its output.

So a node can't fill this machine's memory, and Ctrl-C leaves no ssh behind.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any

MOST_BYTES = 64 << 20
_READ_BYTES = 1 << 18


class TooMuch(Exception):  # noqa: N818 - reads as what happened
    """The program wrote more than MOST_BYTES to standard output or standard error."""


def run(argv: Sequence[str], input: bytes, timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    """Run a program as subprocess.run does, with its output captured.

    Raises TooMuch or subprocess.TimeoutExpired, and kills the program then.
    """
    with file_without_name() as stdin:
        stdin.write(input)
        stdin.seek(0)
        with started(argv, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            stdout, stderr = _read_both(process, time.monotonic() + timeout_s)
            return subprocess.CompletedProcess(argv, process.wait(timeout_s), stdout, stderr)


@contextlib.contextmanager
def started(argv: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program for the block, with Popen's options, and kill it if the block fails."""
    with contextlib.ExitStack() as ending:
        # Otherwise Popen can raise KeyboardInterrupt when the program runs already, and nobody knows its pid.
        with _ctrl_c_after_the_block():
            process = ending.enter_context(subprocess.Popen[bytes](argv, **options))
            ending.push(lambda kind, _error, _traceback: process.kill() if kind else None)
        yield process


@contextlib.contextmanager
def _ctrl_c_after_the_block() -> Iterator[None]:
    """Raise a KeyboardInterrupt that comes during the block when the block has ended."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            raise KeyboardInterrupt


def _read_both(process: subprocess.Popen[bytes], deadline: float) -> list[bytes]:
    """Read standard output and standard error until both are closed."""
    written = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        for pipe in written:
            assert pipe is not None
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready or time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(process.args, 0)
            for key, _ in ready:
                if not _read_some(key.fd, written[key.fileobj]):  # type: ignore[index]
                    selector.unregister(key.fileobj)
    return [bytes(content) for content in written.values()]


def _read_some(fd: int, content: bytearray) -> bool:
    """Append one read to the content; return False at the end. Raises TooMuch."""
    data = os.read(fd, _READ_BYTES)
    content += data
    if len(content) > MOST_BYTES:
        raise TooMuch
    return bool(data)


def file_without_name() -> IO[bytes]:
    """Return an anonymous file: in memory on Linux, otherwise in the temporary directory."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("phalanx"), "w+b")
    return tempfile.TemporaryFile()


@contextlib.contextmanager
def file_with_name() -> Iterator[tuple[IO[bytes], str]]:
    """Yield a file for the block, and a path by which this user's programs open it; in memory on Linux."""
    if sys.platform == "linux":
        with file_without_name() as file:
            yield file, f"/proc/{os.getpid()}/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile() as file:
            yield file, file.name
