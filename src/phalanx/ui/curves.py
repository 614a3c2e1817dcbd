"""Reads the files of scalars of one job through the head, each time only what they have grown by."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.cli.terminal import one_line
from phalanx.jobs import toolbox
from phalanx.runner.names import WORK
from phalanx.ui.scalars import MOST_CURVES, opened

if TYPE_CHECKING:
    from phalanx.jobs.job import ClusterAccess, Job, JobStatus
    from phalanx.ui.scalars import ScalarFile

_MOST_FILES = 16
_PIECE_BYTES = 1 << 20
_DEPTH = 8
# Of one file, `read_whole` reads so many pieces.
_MOST_PIECES = 64
# Of one file, `read_whole` reads so many pieces.
_MOST_PIECES = 64
_TIMEOUT_S = 30.0
_CUT = "ends within a record: what comes before is shown"
_LISTED = re.compile(rb"(\d{1,18}) ([^\0]{1,4096})")


class Curves:
    """The curves of a job. A file of scalars is one that was written after the job's start."""

    def __init__(self, cluster: ClusterAccess, job: Job) -> None:
        self._cluster, self._directory = cluster, f"{job.directory}/{WORK}"
        self._files: dict[bytes, tuple[ScalarFile, int]] = {}
        self._is_behind = False
        self._guard = threading.Lock()

    def read(self, status: JobStatus) -> dict[str, Any]:
        """Return each curve with its file, and a sentence for each file that can't be read. Raises PhalanxError."""
        with self._guard:
            sizes = self._sizes(status.started_at or status.submitted_at)
            grown = {name: size for name, size in sizes.items() if size > self._offset(name, size)}
            for name, data in self._pieces(list(grown)).items():
                file, offset = self._files.get(name) or (opened(name), 0)
                file.feed(data)
                self._files[name] = file, offset + len(data)
            self._is_behind = any(offset < sizes.get(name, 0) for name, (_, offset) in self._files.items())
            read = {name: file for name, (file, _) in self._files.items()}
            return {"curves": _curves(read), "problems": self._problems(sizes, status.state.final)}

    def read_whole(self, status: JobStatus) -> dict[str, Any]:
        """Return what `read` does, of all that the files have. Raises PhalanxError."""
        found = self.read(status)
        for _ in range(_MOST_PIECES):
            if self._is_behind:
                found = self.read(status)
        return found

    def _offset(self, name: bytes, size: int) -> int:
        """Return how much of a file was read. One that became shorter is another file."""
        if self._files.get(name, (None, 0))[1] > size:
            del self._files[name]
        return self._files.get(name, (None, 0))[1]

    def _sizes(self, since_s: float) -> dict[bytes, int]:
        names = "-name '*.csv' -o -name '*tfevents*'"
        find = f"find . -maxdepth {_DEPTH} -type f -newermt @{since_s:.0f} \\( {names} \\) -printf '%s %P\\0'"
        listed = self._run(f"{find} 2>/dev/null | head -c 65536")
        found = [_LISTED.fullmatch(line) for line in listed.split(b"\0")]
        sizes = {one[2]: int(one[1]) for one in found if one}
        return {name: sizes[name] for name in sorted(sizes)[:_MOST_FILES]}

    def _pieces(self, names: list[bytes]) -> dict[bytes, bytes]:
        """Return what follows in each file, as much as is sent at once."""
        if not names:
            return {}
        # A file's content can't contain what nobody knows.
        end = secrets.token_hex(16)
        begins = {name: self._files.get(name, (None, 0))[1] + 1 for name in names}
        each = (f"tail -c +{begins[name]} -- {_quoted(name)} | head -c {_PIECE_BYTES}; printf {end}" for name in names)
        pieces = self._run("; ".join(each)).split(end.encode())
        return dict(zip(names, pieces, strict=False))

    def _run(self, command: str) -> bytes:
        there = f"cd {shlex.quote(self._directory)} 2>/dev/null || exit 0; {command}"
        return toolbox.run(self._cluster.remote(), self._cluster.shared, there, timeout_s=_TIMEOUT_S).stdout

    def _problems(self, sizes: dict[bytes, int], is_over: bool) -> list[str]:
        said = []
        for name, (file, offset) in self._files.items():
            is_cut = is_over and file.rest and offset == sizes.get(name)
            if problem := file.problem or (_CUT if is_cut else ""):
                said.append(f"{_text(name)} {problem}.")
        return said


def read_directory(directory: Path) -> dict[str, Any]:
    """Return what `Curves.read_whole` does, of files on this machine, such as those that `get` has fetched."""
    found = (path for path in directory.rglob("*") if path.name.endswith(".csv") or "tfevents" in path.name)
    paths = sorted(path for path in found if path.is_file() and not path.is_symlink())[:_MOST_FILES]
    files = {os.fsencode(path.relative_to(directory)): path for path in paths}
    read = {name: opened(name) for name in files}
    for name, file in read.items():
        with files[name].open("rb") as content:
            while (data := content.read(_PIECE_BYTES)) and content.tell() <= _MOST_PIECES * _PIECE_BYTES:
                file.feed(data)
    problems = [f"{_text(name)} {file.problem or _CUT}." for name, file in read.items() if file.problem or file.rest]
    return {"curves": _curves(read), "problems": problems}


def _curves(files: Mapping[bytes, ScalarFile]) -> list[dict[str, Any]]:
    """Return the curves of files. The place of one is a CSV file, or an event file's directory."""
    found = [
        {
            "file": _text(name),
            "place": _text(name if name.endswith(b".csv") else name.rpartition(b"/")[0] or b"."),
            "name": one_line(curve),
            "points": sorted(zip(points.steps, points.values, strict=True), key=_step),
        }
        for name, file in files.items()
        for curve, points in file.curves.items()
    ]
    return found[:MOST_CURVES]


def _step(point: tuple[float, float | None]) -> float:
    return point[0]  # a job that was restarted repeats steps


def _quoted(name: bytes) -> str:
    return shlex.quote("./" + name.decode("utf-8", "surrogateescape"))


def _text(name: bytes) -> str:
    return one_line(name.decode(errors="replace"))
