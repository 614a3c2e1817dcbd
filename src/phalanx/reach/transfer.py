"""Files between this machine and the cluster: results home (`get`), data to the shared directory (`put`)."""

from __future__ import annotations

import os
import posixpath
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from phalanx.errors import PhalanxError
from phalanx.jobs import toolbox
from phalanx.jobs.job import ClusterAccess, Job
from phalanx.runner.files import carry
from phalanx.runner.names import WORK
from phalanx.ssh import head_answers


class TransferError(PhalanxError):
    """A file can't be found, read or written; nothing of half its length is left anywhere."""


@dataclass(frozen=True)
class Moved:
    """How much of it has gone over."""

    bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Copied:
    """What came to be, and where. `left_out`: links that lead elsewhere, sockets and their like."""

    place: str
    files: int
    bytes: int
    left_out: tuple[str, ...]


Tell = Callable[[Moved], None]

_LONGEST_ANSWER_BYTES = 1 << 20
_LOAD: dict[str, head_answers.Check] = {
    **dict.fromkeys(("items", "files", "bytes"), head_answers.whole),
    "left_out": head_answers.several(head_answers.text),
}
_MISSING: dict[str, head_answers.Check] = {
    **dict.fromkeys(("missing", "parent"), head_answers.text),
    "holds": head_answers.several(head_answers.text),
}
_ANSWER: dict[str, head_answers.Check] = {"place": head_answers.text, "error": head_answers.text}


def get(
    cluster: ClusterAccess,
    path: str,
    destination: str | Path | None = None,
    job: Job | None = None,
    tell: Tell | None = None,
) -> Copied:
    """Bring a file or directory home: `path` is relative to the job's work/, or absolute below the shared directory.

    It becomes `destination`, or goes into it where that is a directory (default: the present one). Raises
    TransferError, ClusterError.
    """
    there = source_path(cluster, path, job)
    target = _target(destination, posixpath.basename(there))
    toolbox.ready(cluster.remote(), cluster.shared)
    words = toolbox.command(cluster.shared, "give", there, cluster.shared)
    with _channel(cluster, words, stdin=subprocess.DEVNULL) as (process, said):
        assert process.stdout is not None
        header = _header(process.stdout, said, job)
        _receive(process.stdout, header, target, _counter(header["bytes"], tell), said)
    return Copied(str(target), header["files"], header["bytes"], tuple(header["left_out"]))


def put(cluster: ClusterAccess, source: Path, destination: str = "", tell: Tell | None = None) -> Copied:
    """Take a file or directory to the shared directory: to `destination` there, or into it where it is a directory.

    Raises TransferError, ClusterError.
    """
    if not source.exists():
        raise TransferError(f"there is no {source} here", _what_is_beside(source))
    target = shared_path(cluster, destination)
    try:
        load = carry.survey(str(source))
    except carry.CarryError as error:
        raise TransferError(str(error)) from error
    toolbox.ready(cluster.remote(), cluster.shared)
    words = toolbox.command(cluster.shared, "take", target, cluster.shared, source.resolve().name)
    with _channel(cluster, words, stdin=subprocess.PIPE) as (process, said):
        place = _send(process, load, _counter(load.bytes, tell), said)
    return Copied(place, load.files, load.bytes, load.left_out)


def source_path(cluster: ClusterAccess, path: str, job: Job | None) -> str:
    """The absolute path on the cluster. Raises TransferError when it would leave the job's or the shared directory."""
    if path.startswith("/"):
        return _inside(path, cluster.shared, "the shared directory")
    if job is None:
        raise TransferError(f"'{path}' is relative: of which job?", "`phalanx jobs` lists them.")
    return _inside(f"{job.directory}/{WORK}/{path}", job.directory, f"the directory of job {job.id}")


def shared_path(cluster: ClusterAccess, path: str) -> str:
    """The absolute path on the shared directory; a slash at its end stays (it says: into this directory)."""
    there = _inside(posixpath.join(cluster.shared, path), cluster.shared, "the shared directory")
    return there + "/" if path.endswith("/") or there == cluster.shared else there


def _inside(path: str, root: str, called: str) -> str:
    normal = posixpath.normpath(path)
    if not (normal + "/").startswith(posixpath.normpath(root) + "/"):
        raise TransferError(f"{normal} is outside of {called}, {root}", "Only what lies below it can be copied.")
    return normal


def _target(destination: str | Path | None, name: str) -> Path:
    """As cp has it: into a directory that is there (or, with a slash at its end, shall be), else under this name."""
    chosen = Path(destination or ".")
    if str(destination).endswith("/"):
        chosen.mkdir(parents=True, exist_ok=True)
    target = Path(os.path.abspath(chosen / name if chosen.is_dir() else chosen))  # noqa: PTH100 - links stay links
    if not target.parent.is_dir():
        raise TransferError(f"there is no directory {target.parent} here", "mkdir makes it.")
    return target


def _header(stdout: IO[bytes], said: IO[bytes], job: Job | None) -> dict[str, Any]:
    try:
        header = carry.read_header(stdout)
    except carry.CarryError as error:
        raise TransferError(f"the head gave nothing: {_words(said) or error}") from error
    if "missing" in header:
        missing = head_answers.required(header, _MISSING)
        where = f" (job {job.id})" if job else ""
        there = ", ".join(missing["holds"]) or "nothing"
        raise TransferError(f"there is no {missing['missing']}{where}", f"{missing['parent']} holds {there}.")
    if "error" in header:
        raise TransferError(head_answers.fields(header, _ANSWER)["error"])
    return head_answers.required(header, _LOAD)


def _receive(stdout: IO[bytes], header: dict[str, Any], target: Path, count: carry.Progress, said: IO[bytes]) -> None:
    try:
        carry.receive(stdout, header, str(target), count)
    except carry.CarryError as error:
        raise TransferError(f"{target} did not come whole: {_words(said) or error}") from error


def _send(process: subprocess.Popen[bytes], load: carry.Load, count: carry.Progress, said: IO[bytes]) -> str:
    """The place where it is now. What the head says counts more than that it stopped listening."""
    assert process.stdin is not None and process.stdout is not None
    failure: Exception | None = None
    try:
        with process.stdin as stdin:
            carry.send(stdin, load, count)
    except (OSError, carry.CarryError) as error:
        failure = error
    lines = [line for line in process.stdout.read(_LONGEST_ANSWER_BYTES).splitlines() if line.startswith(b"{")]
    answer = head_answers.fields(head_answers.parsed(lines[-1]), _ANSWER) if lines else {}
    if failure is None and "place" in answer:
        return answer["place"]
    own = str(failure) if isinstance(failure, carry.CarryError) else ""
    raise TransferError(f"it did not go over: {own or answer.get('error') or _words(said) or failure or 'no answer'}")


@contextmanager
def _channel(cluster: ClusterAccess, command: str, stdin: int) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """A command on the head and the file of its stderr; it is ended with the block."""
    with tempfile.TemporaryFile() as said:
        process = cluster.remote().popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=said)
        try:
            yield process, said
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe and not pipe.closed:
                    _close(pipe)


def _close(pipe: IO[bytes]) -> None:
    try:
        pipe.close()
    except BrokenPipeError:
        pass  # what was buffered for a program that has ended


def _counter(total_bytes: int, tell: Tell | None) -> carry.Progress:
    return lambda count: tell(Moved(count, total_bytes)) if tell else None


def _words(said: IO[bytes]) -> str:
    said.seek(0)
    return said.read(_LONGEST_ANSWER_BYTES).decode(errors="replace").strip()[-2000:]


def _what_is_beside(path: Path) -> str:
    parent = path.absolute().parent
    while not parent.is_dir():
        parent = parent.parent
    return f"{parent} holds {', '.join(carry.holds(str(parent))) or 'nothing'}."
