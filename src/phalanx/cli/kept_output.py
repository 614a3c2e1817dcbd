"""Keeps the output of jobs on this machine as it is fetched, and shows it when the cluster is gone.

<state>/logs/CLUSTER/ID.NAME.log   a line of output on each, with its time, stream and [rank]; ID.log without a name
                     ID_3.log      that of a task of an array, because a job's name may begin with a number
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from phalanx.jobs.job import JobStatus, OutputLine
from phalanx.runner.files.array import array_of
from phalanx.state_files import cluster_directory, make_directory, state_directory

# Of each job between one and two times as much is kept, and only its end.
_MOST_BYTES = 8 << 20
_MOST_JOBS = 100
_LINE = re.compile(
    rb"(?P<time_s>[0-9.]{1,20}) (?P<stream>stdout|stderr) \[(?P<process>[^\]]{1,2048})\] (?P<data>.*)", re.DOTALL
)
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,62}")


def keeping(events: Iterator[OutputLine | JobStatus], cluster: str, job_id: str) -> Generator[OutputLine | JobStatus]:
    """Yield the events of a whole output, and keep the lines. No failure to keep them disturbs."""
    kept = _Keeping(_directory(cluster), job_id)
    try:
        for event in events:
            kept.take(event)
            yield event
    finally:
        kept.close()


def find(cluster: str | None, reference: str | None) -> Path | None:
    """Return what was kept of a job: by its id, a part of that, or its name; None: the newest one.

    Without the cluster's name it must be the only one of which something was kept.
    """
    directories = [_directory(cluster)] if cluster else [path for path in _root().glob("*") if path.is_dir()]
    if len(directories) != 1:
        return None
    files = sorted(directories[0].glob("*.log"))
    if reference is None:
        return files[-1] if files else None
    named = [file for file in files if reference in (_id(file), file.stem.partition(".")[2])]
    of_kind = [file for file in files if bool(array_of(_id(file))) is bool(array_of(reference))]
    near = [file for file in of_kind if _id(file).startswith(reference) or _id(file).endswith(reference)]
    return named[-1] if named else near[0] if len(near) == 1 else None


def lines_of(file: Path, rank: str | None, stream: str | None, tail: int | None) -> list[OutputLine]:
    """Return what was kept of a job: only this rank's lines, only of this stream, only this many of the last ones."""
    found = [_LINE.fullmatch(line) for line in file.read_bytes().split(b"\n")]
    lines = [
        OutputLine(line["process"].decode(), "", line["stream"].decode(), float(line["time_s"]), line["data"])
        for line in found
        if line and rank in (None, line["process"].decode()) and stream in (None, line["stream"].decode())
    ]
    return lines if tail is None else lines[max(0, len(lines) - tail) :]


def origin(file: Path) -> str:
    """Return which job it is, and until when it was fetched."""
    return f"what was fetched of job {_id(file)} until {time.ctime(file.stat().st_mtime)}"


class _Keeping:
    """Writes a job's lines into a file beside the kept one, which it replaces if it is longer."""

    def __init__(self, directory: Path, job_id: str) -> None:
        self._directory, self._id, self._name = directory, job_id.replace(".", "_"), ""
        self._part = directory / f"{self._id}.part"
        self._before = directory / f"{self._id}.before"
        self._file: IO[bytes] | None = None
        with suppress(OSError):
            make_directory(directory)
            self._file = self._part.open("wb")
            self._part.chmod(0o600)

    def take(self, event: OutputLine | JobStatus) -> None:
        if isinstance(event, JobStatus):
            self._name = event.name if _NAME.fullmatch(event.name) else ""
        elif self._file and not event.is_draft:
            try:
                self._file.write(f"{event.time_s:.3f} {event.stream} [{event.process}] ".encode() + event.data + b"\n")
                if self._file.tell() > _MOST_BYTES:
                    self._turn()
            except OSError:
                self._file = None  # the disk is full, say

    def _turn(self) -> None:
        """Begin another file; the present one is what comes before it."""
        assert self._file
        self._file.close()
        self._part.replace(self._before)
        self._file = self._part.open("wb")
        self._part.chmod(0o600)

    def close(self) -> None:
        with suppress(OSError):
            if self._file:
                self._file.close()
                self._keep()
        for path in (self._part, self._before):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _keep(self) -> None:
        if self._before.exists():
            with self._before.open("ab") as file:
                file.write(self._part.read_bytes())
            self._before.replace(self._part)
        earlier = list(self._directory.glob(f"{self._id}.*log"))
        if self._part.stat().st_size < max((file.stat().st_size for file in earlier), default=1):
            return
        for file in earlier:
            file.unlink()
        self._part.rename(self._directory / ".".join(filter(None, (self._id, self._name, "log"))))
        for file in sorted(self._directory.glob("*.log"))[:-_MOST_JOBS]:
            file.unlink()


def _root() -> Path:
    return state_directory() / "logs"


def _directory(cluster: str) -> Path:
    return _root() / cluster_directory(cluster).name


def _id(file: Path) -> str:
    return file.stem.partition(".")[0].replace("_", ".")
