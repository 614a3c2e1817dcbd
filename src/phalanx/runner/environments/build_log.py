"""The output of pip and compilers while an environment is made: all of it in a file, the beginning on the screen."""

from __future__ import annotations

import math
import os
import re
import time
from typing import TYPE_CHECKING

from phalanx.runner.files.record import open_to_append
from phalanx.runner.loop import is_readable

if TYPE_CHECKING:
    import subprocess
    from typing import Iterator, List

NAME = "environment.log"
# pip prints a few lines for each package; a native build that fails prints hundreds of thousands.
_SHOWN_LINES = 500
_ERROR_LINES = 12
# The errors of GCC, Clang, NVCC, linkers, CMake and Rust's compiler; those of pip and setuptools come after them.
_ERROR = re.compile(
    rb"^\s*\S+[:(]\d+\S*:? (?:fatal )?error\b|^\s*error\[E\d+\]|CMake Error|nvcc fatal"
    rb"|undefined reference to|ld: cannot find"
)
_READ_BYTES = 1 << 16
_LOOK_EVERY_S = 0.2


class BuildLog:
    """Appends to NAME in the job's directory, and shows the first lines."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, NAME)
        self._lines = 0
        self._error_at = 0
        self._error: List[bytes] = []

    def follow(self, process: subprocess.Popen[bytes], end: float = math.inf) -> int:
        """Log what the process writes to stdout; return its exit code. At `end` (monotonic) it is killed."""
        with os.fdopen(open_to_append(self._path), "ab") as file:
            for line in _lines(process, end):
                file.write(line + b"\n")
                self._take(line)
        return process.wait()

    def explain(self) -> None:
        """Show the first lines of the first error, which many others may follow."""
        if self._error:
            _show(f"the first error, in line {self._error_at} of {self._lines} of {self._path}:".encode())
            for line in self._error:
                _show(line)

    def _take(self, line: bytes) -> None:
        self._lines += 1
        if not self._error_at and _ERROR.search(line):
            self._error_at = self._lines
        if self._error_at and len(self._error) < _ERROR_LINES:
            self._error.append(line)
        if self._lines < _SHOWN_LINES:
            _show(line)
        elif self._lines == _SHOWN_LINES:
            _show(f"… the rest is in {self._path}".encode())


def _lines(process: subprocess.Popen[bytes], end: float) -> Iterator[bytes]:
    rest = b""
    for data in _chunks(process, end):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _chunks(process: subprocess.Popen[bytes], end: float) -> Iterator[bytes]:
    """Yield output until the process has ended: a process that it left (a compiler's cache) may keep stdout open."""
    assert process.stdout is not None
    fd = process.stdout.fileno()
    while is_readable(fd, _LOOK_EVERY_S) or process.poll() is None:
        if time.monotonic() > end:
            process.kill()
        if is_readable(fd, 0):
            data = os.read(fd, _READ_BYTES)
            if not data:
                return
            yield data


def _show(line: bytes) -> None:
    os.write(1, line + b"\n")
