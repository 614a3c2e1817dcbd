"""Copies files between this machine and the cluster: results home (`get`), data to the shared directory (`put`)."""

from __future__ import annotations

import errno
import fnmatch
import os
import posixpath
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from phalanx import guest_file
from phalanx.errors import PhalanxError
from phalanx.jobs import toolbox
from phalanx.jobs.job import ClusterAccess, Job
from phalanx.runner.files import carry
from phalanx.runner.files.unchanged import Known
from phalanx.runner.names import WORK
from phalanx.ssh import head_answers
from phalanx.ssh.bounded import file_without_name
from phalanx.ssh.remote import Broken
from phalanx.waits import waiting


class TransferError(PhalanxError):
    """A file can't be found, read or written; no partial copy is left anywhere."""

    code = "not-copied"


class NoFile(TransferError):  # noqa: N818 (names the state)
    """The cluster has no such file. `matches` are those that fit it as a shell's pattern, as absolute paths."""

    code = "no-file"
    matches: tuple[str, ...] = ()


@dataclass(frozen=True)
class Moved:
    """How much has been copied."""

    bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Copied:
    """What was copied, and to which place. `left_out` names links that lead elsewhere.

    `unread` names what could not be read, or is no file, each with the reason: it is missing from the copy. `files` and
    `bytes` count what was sent; `unchanged` counts the files that were there already.
    """

    place: str
    files: int
    bytes: int
    left_out: tuple[str, ...]
    unread: tuple[str, ...] = ()
    unchanged: int = 0


Progress = Callable[[Moved], None]

_MAX_ANSWER_BYTES = 1 << 20
# ssh's exit status.
_BROKEN = 255
_ENDS_WITHIN_S = 1.0
# Linux takes no longer path (PATH_MAX).
_LONGEST_PATH = 4096
_LOAD: dict[str, head_answers.Check] = {
    **dict.fromkeys(("items", "files", "bytes"), head_answers.whole),
    **dict.fromkeys(("left_out", "unread"), head_answers.list_of(head_answers.text)),
}
_MISSING: dict[str, head_answers.Check] = {
    **dict.fromkeys(("missing", "parent"), head_answers.text),
    **dict.fromkeys(("holds", "matches"), head_answers.list_of(head_answers.text)),
}
_ANSWER: dict[str, head_answers.Check] = {"place": head_answers.text, "error": head_answers.text}


def get(
    cluster: ClusterAccess,
    path: str,
    destination: str | Path | None = None,
    job: Job | None = None,
    progress: Progress | None = None,
) -> Copied:
    """Copy a file or directory home: `path` is relative to the job's work/, or absolute below the shared directory.

    It is copied to `destination`, or into it if that is a directory (default: the current one). A file that is there
    with the same size and time is not sent. Raises TransferError and ClusterError.
    """
    there = source_path(cluster, path, job)
    target = _target(destination, posixpath.basename(there))
    toolbox.ready(cluster.remote(), cluster.shared)
    command = toolbox.command(cluster.shared, "give", there, cluster.shared)

    def copy() -> Copied:
        with _channel(cluster, command) as (process, said):
            assert process.stdout is not None
            header = _header(process.stdout, said, job, there)
            known, gone = _receive(process, header, target, progress, said)
        unread = (*header["unread"], *map(head_answers.text, gone))
        files, count = header["files"] - len(known.same) - len(gone), header["bytes"] - known.bytes
        return Copied(str(target), files, count, tuple(header["left_out"]), unread, len(known.same))

    return toolbox.persist(cluster.remote, copy)


def get_each(
    cluster: ClusterAccess,
    paths: Sequence[str],
    destination: str | None,
    job: Job | None,
    meter: Callable[[], Progress],
) -> Iterator[Copied]:
    """Copy each path, and what each pattern matches, as `get` does; several into a directory, which is made if needed.

    `meter` is called for each copy. Raises TransferError and ClusterError.
    """
    target = f"{destination or '.'}/" if len(paths) > 1 else destination
    taken: dict[str, str] = {}
    for path in paths:
        yield from _copies(cluster, path, target, job, meter, taken)


def _copies(
    cluster: ClusterAccess,
    path: str,
    target: str | None,
    job: Job | None,
    meter: Callable[[], Progress],
    taken: dict[str, str],
) -> Iterator[Copied]:
    if not is_pattern(path):
        _take_name(path, taken)
    try:
        yield get(cluster, path, target, job, meter())
    except NoFile as error:
        if not error.matches:
            raise
        matches = _outermost(error.matches)
        into = f"{target or '.'}/" if len(matches) > 1 else target
        for match in matches:
            _take_name(match, taken)
            yield get(cluster, match, into, None, meter())


def _outermost(paths: Sequence[str]) -> list[str]:
    """Return the paths that are not below another one, which brings them."""
    known = {path.rstrip("/") for path in paths}
    return sorted(path for path in known if known.isdisjoint(map(str, PurePosixPath(path).parents)))


def is_pattern(path: str) -> bool:
    """Whether a shell would read it as a pattern; a file may have that name nevertheless."""
    return not set("*?[").isdisjoint(path)


def _take_name(path: str, taken: dict[str, str]) -> None:
    """Raise TransferError if a copy would replace an earlier one."""
    name = posixpath.basename(posixpath.normpath(path))
    if name in taken:
        raise TransferError(
            f"two are named '{name}', and one would replace the other: {taken[name]} and {path}",
            "Copy them one after the other, to different places.",
        )
    taken[name] = path


def put(cluster: ClusterAccess, source: Path, destination: str = "", progress: Progress | None = None) -> Copied:
    """Copy a file or directory to the shared directory: to `destination` there, or into it if it is a directory.

    A file that is there with the same size and time is not sent. Raises TransferError and ClusterError.
    """
    try:
        is_there, name = guest_file.answer(source, lambda: (source.exists(), source.resolve().name))
    except OSError as error:
        raise TransferError(f"can't read {source}: {error.strerror}") from error
    if not is_there:
        raise TransferError(f"there is no {source} here", _siblings(source), code="no-file")
    target = shared_path(cluster, destination)
    try:
        with waiting(f"the list of the files in {source}"):
            load = carry.survey(str(source))
    except carry.CarryError as error:
        raise TransferError(str(error)) from error
    # First, and once: of a directory that was copied in part, a second copy would be placed in it.
    found = toolbox.command(cluster.shared, "place", target, cluster.shared, name)
    found = toolbox.run(cluster.remote(), cluster.shared, found, timeout_s=30.0)
    place = _place(found.stdout, cluster.shared)
    command = toolbox.command(cluster.shared, "take", place, cluster.shared)

    def copy() -> Copied:
        with _channel(cluster, command) as (process, said):
            place, sent, gone = _send(process, load, progress, said, cluster.shared)
        unchanged = load.files - sent.files
        return Copied(place, sent.files - len(gone), sent.bytes, load.left_out, (*load.unread, *gone), unchanged)

    return toolbox.persist(cluster.remote, copy)


def source_path(cluster: ClusterAccess, path: str, job: Job | None) -> str:
    """Return the absolute path on the cluster. Raises TransferError outside the job's and the shared directory."""
    if path.startswith("/"):
        return _inside(path, cluster.shared, "the shared directory")
    if job is None:
        raise TransferError(
            f"'{path}' is relative: relative to which job?", "`phalanx jobs` lists the jobs.", code="relative-path"
        )
    return _inside(f"{job.directory}/{WORK}/{path}", job.directory, f"the directory of job {job.id}")


def shared_path(cluster: ClusterAccess, path: str) -> str:
    """Return the absolute path on the shared directory; keep a trailing slash, which means: into this directory."""
    there = _inside(posixpath.join(cluster.shared, path), cluster.shared, "the shared directory")
    return there + "/" if path.endswith("/") or there == cluster.shared else there


def _inside(path: str, root: str, name: str) -> str:
    normal = posixpath.normpath(path)
    if not (normal + "/").startswith(posixpath.normpath(root) + "/"):
        raise TransferError(
            f"{normal} is outside of {name}, {root}", "Only files below it can be copied.", code="outside-shared"
        )
    return normal


def _target(destination: str | Path | None, name: str) -> Path:
    """Return the target as cp does: inside a directory that exists (or is to be made, with a slash), else this path."""
    chosen = Path(destination or ".")
    if str(destination).endswith("/"):
        chosen.mkdir(parents=True, exist_ok=True)
    target = Path(os.path.abspath(chosen / name if chosen.is_dir() else chosen))  # noqa: PTH100 - links stay links
    if not target.parent.is_dir():
        raise TransferError(f"there is no directory {target.parent} here", "Create it with mkdir.", code="no-directory")
    return target


def _header(stdout: IO[bytes], said: IO[bytes], job: Job | None, path: str) -> dict[str, Any]:
    try:
        with waiting("the head to read the files"):
            header = carry.read_header(stdout)
    except carry.CarryError as error:
        raise TransferError(f"the head sent nothing: {_text(said) or error}") from error
    if "missing" in header:
        missing = head_answers.required(header, _MISSING)
        where = f" (job {job.id})" if job else ""
        found = ", ".join(missing["holds"]) or "nothing"
        error = NoFile(f"there is no {missing['missing']}{where}", f"{missing['parent']} contains {found}.")
        error.matches = tuple(missing["matches"])
        # The names of the files here come from these.
        for match in error.matches:
            if not _fits(match, path):
                raise TransferError(
                    f"the head sent an invalid answer: {path} does not match {match!r:.300}", code="invalid-answer"
                )
        raise error
    if "error" in header:
        raise TransferError(head_answers.fields(header, _ANSWER)["error"])
    return {**head_answers.required(header, _LOAD), carry.LISTED: header.get(carry.LISTED) is True}


def _fits(path: str, pattern: str) -> bool:
    """Whether a pattern matches a path, as the head's glob has it: `*` and `**` match no hidden name."""
    if len(path) > _LONGEST_PATH or "\0" in path:
        return False
    # One slash at the end is what `**` leaves where it stands for no directory.
    names = path.removesuffix("/").split("/")
    ends = {0}  # how many names the pattern's parts so far can take up
    for part in pattern.split("/"):
        if part == "**":
            for count, name in enumerate(names):
                if count in ends and _is_visible(name):
                    ends.add(count + 1)
        else:
            ends = {count + 1 for count in ends if count < len(names) and _is_name(names[count], part)}
    return len(names) in ends


def _is_name(name: str, part: str) -> bool:
    can_be = _is_visible(name) or (part.startswith(".") and name not in (".", ".."))
    return name == part or (can_be and fnmatch.fnmatchcase(name, part))


def _is_visible(name: str) -> bool:
    return not name.startswith(".") and name != ""


def _receive(
    process: subprocess.Popen[bytes], header: dict[str, Any], target: Path, progress: Progress | None, said: IO[bytes]
) -> tuple[Known, list[str]]:
    """Answer the head's list, and receive what is not here; return what is, and what the head could not read."""
    assert process.stdin is not None and process.stdout is not None
    try:
        with waiting("the list of the head's files"):
            known = carry.known(process.stdout, header, str(target))
        with suppress(BrokenPipeError), process.stdin as stdin:  # the head says why it is gone
            carry.say(stdin, known.answer())
        count = _counter(header["bytes"] - known.bytes, progress)
        return known, carry.receive(process.stdout, header, str(target), count, known)
    except carry.CarryError as error:
        raise TransferError(
            f"{target} was not copied completely: {_text(said) or error}", code="incomplete-copy"
        ) from error


def _send(
    process: subprocess.Popen[bytes], load: carry.Load, progress: Progress | None, said: IO[bytes], shared: str
) -> tuple[str, carry.Load, list[str]]:
    """Send the files that the head has not; return their place, what was to be sent, and what could not be read.

    The head's answer explains more than a broken pipe.
    """
    assert process.stdin is not None and process.stdout is not None
    failure: Exception | None = None
    left, gone = load, []
    try:
        with process.stdin as stdin:
            carry.offer(stdin, load)
            with waiting("the head to compare the files"):
                left = carry.left(process.stdout, load)
            gone = carry.send(stdin, left, _counter(left.bytes, progress))
    except (OSError, carry.CarryError) as error:
        failure = error
    with waiting("the head to store the files"):
        answer = _answer(process.stdout.read(_MAX_ANSWER_BYTES))
    if failure is None and "place" in answer:
        return answer["place"], left, gone
    own = str(failure) if isinstance(failure, carry.CarryError) else ""
    raise _failed(own or answer.get("error") or _text(said) or str(failure or "no answer"), shared)


def _place(answered: bytes, shared: str) -> str:
    """Return the place for a copy that the head has found. Raises TransferError with its reason."""
    answer = _answer(answered)
    if "place" in answer:
        return answer["place"]
    raise _failed(answer.get("error", "no answer"), shared)


def _answer(answered: bytes) -> dict[str, Any]:
    lines = [line for line in answered.splitlines() if line.startswith(b"{")]
    return head_answers.fields(head_answers.parsed(lines[-1]), _ANSWER) if lines else {}


def _failed(reason: str, shared: str) -> TransferError:
    return TransferError(f"the copy failed: {reason}", _repair(reason, shared))


def _repair(reason: str, shared: str) -> str:
    """Return how the user of jobs gets the right to write; "" for another reason."""
    return toolbox.how_to_open(shared) if os.strerror(errno.EACCES) in reason else ""


@contextmanager
def _channel(cluster: ClusterAccess, command: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """Run a command on the head within the block; yield it with the file of its stderr."""
    with file_without_name() as said:
        process = cluster.remote().popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)
        try:
            yield process, said
        except TransferError as error:
            if not isinstance(error, NoFile) and _is_broken(process):
                raise Broken(
                    "the connection to the head broke again and again while files were copied",
                    "Repeat the command when the network is stable. Files that are there are complete.",
                ) from error
            raise
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe and not pipe.closed:
                    _close(pipe)


def _is_broken(process: subprocess.Popen[bytes]) -> bool:
    """Return whether ssh ends because the connection broke; the head's end of a copy never has its status."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(_ENDS_WITHIN_S) == _BROKEN
    return False


def _close(pipe: IO[bytes]) -> None:
    try:
        pipe.close()
    except BrokenPipeError:
        pass  # there was buffered input, but the program has ended


def _counter(total_bytes: int, progress: Progress | None) -> carry.Progress:
    return lambda count: progress(Moved(count, total_bytes)) if progress else None


def _text(said: IO[bytes]) -> str:
    said.seek(0)
    return said.read(_MAX_ANSWER_BYTES).decode(errors="replace").strip()[-2000:]


def _siblings(path: Path) -> str:
    parent = path.absolute().parent
    while not parent.is_dir():
        parent = parent.parent
    return f"{parent} contains {', '.join(carry.names_in(str(parent))) or 'nothing'}."
