"""A job's state.json, written whole at every transition, and whether the job's runner still lives."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid, Newer
from phalanx.runner.files import record
from phalanx.runner.files.job_record import JobRecord
from phalanx.runner.files.schema import DAMAGED, FINAL, FORMAT, job_state, runner
from phalanx.runner.names import OUTPUT, SUBMITTER
from phalanx.runner.system import boot_id, process_stat

if TYPE_CHECKING:
    from typing import Any, Dict, Sequence

    State = Dict[str, Any]

PENDING = "pending"
RUNNING = "running"
SUCCEEDED = "succeeded"
FAILED = "failed"
STOPPED = "stopped"
LOST = "lost"
_FILE = "state.json"
# A file that reserves disk space for the job's last state.
_ROOM = "room"
_ROOM_BYTES = 64 << 10
# Longer than any submission takes.
_COMES_WITHIN_S = 86400.0


def initial(job: JobRecord, has_secrets: bool) -> State:
    """Return the state of a job that was just accepted."""
    return {
        "format": FORMAT,
        "id": job.id,
        "name": job.name or "",
        "launcher": job.launcher,
        "command": list(job.command),
        "submitted_at": job.submitted_at,
        "tags": dict(job.tags),
        # The id of the cluster's stack (settle.is_foreign).
        "stack": job.stack,
        "state": PENDING,
        "started_at": None,
        "ended_at": None,
        "processes": 0,
        "ranks": {},
        "gpus": {},
        "waits": False,
        "exit_code": None,
        "message": "",
        "attempt": 0,
        "restarts": job.restarts,
        "attempts": [],
        "has_secrets": has_secrets,
        "tail": [],
        "nodes": [],
        "runner": {},
        "allocation": None,
    }


def keep_room(directory: str) -> None:
    """Reserve disk space for a job's last state, so that it can be written on a full disk. Raises OSError."""
    write_file(os.path.join(directory, _ROOM), "\0" * _ROOM_BYTES)


def write(directory: str, state: State) -> None:
    """Replace state.json in one step: a reader sees the old one or the new one, also after a power failure.

    The first and the final state are on the disk when this returns; those between may be lost with the machine.
    Raises OSError on a full disk; a final state is then written into the reserved space.
    """
    path, text = os.path.join(directory, _FILE), json.dumps(state)
    is_final, is_first = state["state"] in FINAL, not os.path.lexists(path)
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


def read(directory: str) -> State:
    """Return the present state. Raises FileNotFoundError, NotADirectoryError where there is no job, Invalid, Newer."""
    try:
        state = record.read_json(os.path.join(directory, _FILE))
    except FileNotFoundError:
        if os.path.lexists(os.path.join(directory, OUTPUT)):  # a job's first state comes before its output
            raise Invalid(f"{_FILE} is gone") from None
        raise
    try:
        state = job_state(state, job_id_of(directory))
    except Newer:
        raise
    except Invalid as error:
        raise Invalid(f"{_FILE}: {error}") from error
    if state["state"] == DAMAGED:
        raise Invalid(f"{_FILE}: no runner writes the state '{DAMAGED}'")
    return state


def is_abandoned(directory: str) -> bool:
    """Return whether the submission into this directory without a state was cut off."""
    try:
        submitter = runner(record.read_json(os.path.join(directory, SUBMITTER)))
    except (FileNotFoundError, Invalid):
        return time.time() - os.stat(directory).st_mtime > _COMES_WITHIN_S
    return not runner_lives({"runner": submitter})


def job_id_of(directory: str) -> str:
    """Return the id of this directory's job, without reading its record."""
    return os.path.basename(os.path.abspath(directory))


def damaged(directory: str, reason: Invalid) -> State:
    """Return the state that is shown of a job whose record is invalid or a newer phalanx's."""
    job = JobRecord((), "", job_id_of(directory))
    message = str(reason) if isinstance(reason, Newer) else f"damaged record: {reason}"
    return {**initial(job, has_secrets=False), "state": DAMAGED, "message": message}


def set_aside(directory: str, name: str = _FILE) -> None:
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


def this_runner(head: str) -> Dict[str, Any]:
    """Return the identity of this process, for `runner_lives`; `head` is the instance that it runs on."""
    stat = process_stat(os.getpid())
    return {"pid": os.getpid(), "start": stat["start"] if stat else "", "boot_id": boot_id(), "head": head}


def runner_lives(state: State) -> bool:
    """Return whether the job's runner runs here, in this boot. The pid may have passed to another process."""
    runner = state["runner"]
    if not runner or runner["boot_id"] != boot_id():
        return False
    stat = process_stat(runner["pid"])
    return bool(stat) and stat["start"] == runner["start"] and stat["state"] not in "ZX"  # type: ignore[index]


def verdict(node: str, report: Dict[str, Sequence[str]]) -> Dict[str, Any]:
    """Return a node's verdict for the state, from its sweep's report."""
    left = report["left"]
    message = f"could not be ended: {', '.join(left)}" if left else ""
    if report["ended"] and not left:
        message = f"had to be ended: {', '.join(report['ended'][:5])}" + (" …" if len(report["ended"]) > 5 else "")
    return {"node": node, "clean": not left, "killed": len(report["ended"]), "message": message}
