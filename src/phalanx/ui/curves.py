"""Reads the files of scalars of one job through the head, each time only what they have grown by."""

from __future__ import annotations

import re
import secrets
import shlex
import threading
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
_TIMEOUT_S = 30.0
_LISTED = re.compile(rb"(\d{1,18}) ([^\0]{1,4096})")


class Curves:
    """The curves of a job. A file of scalars is one that was written after the job's start."""

    def __init__(self, cluster: ClusterAccess, job: Job) -> None:
        self._cluster, self._directory = cluster, f"{job.directory}/{WORK}"
        self._files: dict[bytes, tuple[ScalarFile, int]] = {}
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
            return {"curves": self._curves(), "problems": self._problems(sizes, status.state.final)}

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

    def _curves(self) -> list[dict[str, Any]]:
        found = [
            {
                "file": _text(name),
                "name": one_line(curve),
                "points": sorted(zip(points.steps, points.values, strict=True), key=_step),
            }
            for name, (file, _) in self._files.items()
            for curve, points in file.curves.items()
        ]
        return found[:MOST_CURVES]

    def _problems(self, sizes: dict[bytes, int], is_over: bool) -> list[str]:
        said = []
        for name, (file, offset) in self._files.items():
            is_cut = is_over and file.rest and offset == sizes.get(name)
            if problem := file.problem or ("ends within a record: what comes before is shown" if is_cut else ""):
                said.append(f"{_text(name)} {problem}.")
        return said


def _step(point: tuple[float, float | None]) -> float:
    return point[0]  # a job that was restarted repeats steps


def _quoted(name: bytes) -> str:
    return shlex.quote("./" + name.decode("utf-8", "surrogateescape"))


def _text(name: bytes) -> str:
    return one_line(name.decode(errors="replace"))
