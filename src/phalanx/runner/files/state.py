"""A job's state.json, written whole at every transition, and whether the job's runner still lives."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid, Newer
from phalanx.runner.files import record
from phalanx.runner.files.job_status import JobState, JobStatus, RunnerIdentity
from phalanx.runner.names import OUTPUT, SUBMITTER
from phalanx.runner.system import boot_id, process_stat

if TYPE_CHECKING:
    from typing import Optional

FILE = "state.json"
# A file that reserves disk space for the job's last state.
_ROOM = "room"
_ROOM_BYTES = 64 << 10
# Longer than any submission takes.
_COMES_WITHIN_S = 86400.0


def keep_room(directory: str) -> None:
    """Reserve disk space for a job's last state, so that it can be written on a full disk. Raises OSError."""
    write_file(os.path.join(directory, _ROOM), "\0" * _ROOM_BYTES)


def write(directory: str, status: JobStatus) -> None:
    """Replace state.json in one step: a reader sees the old one or the new one, also after a power failure.

    The first and the final state are on the disk when this returns; those between may be lost with the machine.
    Raises OSError on a full disk; a final state is then written into the reserved space.
    """
    path, text = os.path.join(directory, FILE), json.dumps(status.to_record())
    is_final, is_first = status.state.final, not os.path.lexists(path)
    try:
        write_file(path, text, is_synced=True)
    except OSError:
        if not is_final:
            raise
        _give_room(directory)
        write_file(path, text, is_synced=True)
    if is_final:
        _give_room(directory)
    if is_final or is_first:
        sync_directory(directory)


def _give_room(directory: str) -> None:
    try:
        os.unlink(os.path.join(directory, _ROOM))
    except FileNotFoundError:
        pass  # freed before


def read(directory: str) -> JobStatus:
    """Return the present state. Raises FileNotFoundError, NotADirectoryError where there is no job, Invalid, Newer."""
    try:
        value = record.read_json(os.path.join(directory, FILE))
    except FileNotFoundError:
        if os.path.lexists(os.path.join(directory, OUTPUT)):  # a job's first state comes before its output
            raise Invalid(f"{FILE} is gone") from None
        raise
    try:
        status = JobStatus.from_record(value, f"job {job_id_of(directory)}")
    except Newer:
        raise
    except Invalid as error:
        raise Invalid(f"{FILE}: {error}") from error
    if status.id != job_id_of(directory):
        raise Invalid(f"{FILE}: it belongs to another job")
    if status.state is JobState.DAMAGED:
        raise Invalid(f"{FILE}: no runner writes the state '{status.state.value}'")
    return status


def is_abandoned(directory: str) -> bool:
    """Return whether the submission into this directory without a state was cut off."""
    try:
        submitter = RunnerIdentity.from_record(record.read_json(os.path.join(directory, SUBMITTER)))
    except (FileNotFoundError, Invalid):
        return time.time() - os.stat(directory).st_mtime > _COMES_WITHIN_S
    return not runner_lives(submitter)


def job_id_of(directory: str) -> str:
    """Return the id of this directory's job, without reading its record."""
    return os.path.basename(os.path.abspath(directory))


def damaged(directory: str, reason: Invalid) -> JobStatus:
    """Return the status that is shown of a job whose record is invalid or a newer phalanx's."""
    message = str(reason) if isinstance(reason, Newer) else f"damaged record: {reason}"
    return JobStatus(job_id_of(directory), "", "", (), JobState.DAMAGED, 0.0, message=message)


def set_aside(directory: str, name: str = FILE) -> None:
    """Rename whatever has this name, to make room for a valid file."""
    path = os.path.join(directory, name)
    if os.path.lexists(path):
        os.rename(path, f"{path}.damaged-{time.time_ns()}")


def write_file(path: str, text: str, mode: int = 0o600, is_synced: bool = False) -> None:
    """Write a temporary file and rename it: a reader sees the whole old text or the whole new one.

    With `is_synced`, also after a power failure: the text is on the disk before it gets its name. Without it, an empty
    file may be left, which is enough for a file that is written again.
    """
    beside = f"{path}.{os.getpid()}"
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        try:
            _write_all(fd, text.encode())
            if is_synced:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(beside, path)
    except OSError:
        os.unlink(beside)
        raise


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def sync_directory(path: str) -> None:
    """Sync the names in this directory to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def this_runner(head: str) -> RunnerIdentity:
    """Return the identity of this process, for `runner_lives`; `head` is the instance that it runs on."""
    stat = process_stat(os.getpid())
    return RunnerIdentity(os.getpid(), stat["start"] if stat else "", boot_id(), head)


def runner_lives(runner: Optional[RunnerIdentity]) -> bool:
    """Return whether a job's runner runs here, in this boot. The pid may have passed to another process."""
    if runner is None or runner.boot_id != boot_id():
        return False
    stat = process_stat(runner.pid)
    # Of one that hangs, nobody can read the start.
    return stat is not None and stat["start"] in (runner.start, "") and stat["state"] not in "ZX"
