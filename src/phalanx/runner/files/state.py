"""state.json of a job: written whole at every transition, and the answer to whether its runner still lives."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid
from phalanx.runner.files import record
from phalanx.runner.files.schema import DAMAGED, FINAL, job_state, runner
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
# Kept from the job's submission to its end, for its last state.
_ROOM = "room"
_ROOM_BYTES = 64 << 10
# Beyond the time that any submission takes.
_COMES_WITHIN_S = 86400.0


def initial(job: Dict[str, Any], has_secrets: bool) -> State:
    """The state of a job that was just accepted."""
    return {
        **{key: job[key] for key in ("id", "name", "launcher", "command", "submitted_at")},
        "tags": job.get("tags", {}),
        # The id of the cluster's stack (settle.is_foreign).
        "stack": job.get("stack", ""),
        "state": PENDING,
        "started_at": None,
        "ended_at": None,
        "processes": 0,
        "ranks": {},
        "waits": False,
        "exit_code": None,
        "message": "",
        "attempt": 0,
        "restarts": job.get("restarts", 0),
        "attempts": [],
        "has_secrets": has_secrets,
        "tail": [],
        "nodes": [],
        "runner": {},
        "allocation": None,
    }


def keep_room(directory: str) -> None:
    """Take what a job's last state needs of the disk, so that its end can be told on a full one. Raises OSError."""
    write_file(os.path.join(directory, _ROOM), "\0" * _ROOM_BYTES)


def write(directory: str, state: State) -> None:
    """Replace state.json in one step: a reader sees the old one or the new one, after a power failure, too.

    That a job was taken, and how it ended, is on the disk when this returns; what comes between may be forgotten with
    the machine that it happened on. Raises OSError on a full disk; a final state is written in the room that was kept
    for it then.
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
        pass  # given before, or a job that was taken before there was such a thing


def read(directory: str) -> State:
    """The state as it is now. Raises FileNotFoundError, NotADirectoryError where there is no job, Invalid."""
    try:
        state = record.read_json(os.path.join(directory, _FILE))
    except FileNotFoundError:
        if os.path.lexists(os.path.join(directory, OUTPUT)):  # a job's first state comes before its output
            raise Invalid(f"{_FILE} is gone") from None
        raise
    try:
        state = job_state(state, job_id_of(directory))
    except Invalid as error:
        raise Invalid(f"{_FILE}: {error}") from error
    if state["state"] == DAMAGED:
        raise Invalid(f"{_FILE}: no runner has written that")
    return state


def is_abandoned(directory: str) -> bool:
    """Did this job's submission break off with its machine? Of a directory that has no state."""
    try:
        submitter = runner(record.read_json(os.path.join(directory, SUBMITTER)))
    except (FileNotFoundError, Invalid):
        return time.time() - os.stat(directory).st_mtime > _COMES_WITHIN_S
    return not runner_lives({"runner": submitter})


def job_id_of(directory: str) -> str:
    """The id of the job that this directory is, whatever its record says."""
    return os.path.basename(os.path.abspath(directory))


def damaged(directory: str, reason: object) -> State:
    """What is shown of a job whose record can't be believed."""
    job = {"id": job_id_of(directory), "name": "", "launcher": "", "command": [], "submitted_at": 0.0}
    return {**initial(job, has_secrets=False), "state": DAMAGED, "message": f"damaged record: {reason}"}


def set_aside(directory: str, name: str = _FILE) -> None:
    """Make room for a sound file of this name; whatever is there stays beside it."""
    path = os.path.join(directory, name)
    if os.path.lexists(path):
        os.rename(path, f"{path}.damaged-{time.time_ns()}")


def write_file(path: str, text: str, mode: int = 0o600, is_synced: bool = False) -> None:
    """Write beside and rename: who reads sees the old text or the new one, whole.

    `is_synced`: after a power failure, too, for the text is on the disk before it has its name. Without it an empty
    file may be left, which is enough for what is made again.
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
    """What names it holds is on the disk when this returns."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def this_runner(head: str) -> Dict[str, Any]:
    """Identity of this process, for `runner_lives`; `head` is the instance that it runs on."""
    stat = process_stat(os.getpid())
    return {"pid": os.getpid(), "start": stat["start"] if stat else "", "boot_id": boot_id(), "head": head}


def runner_lives(state: State) -> bool:
    """Is the job's runner running here, in this boot? A pid alone may have been used again."""
    runner = state["runner"]
    if not runner or runner["boot_id"] != boot_id():
        return False
    stat = process_stat(runner["pid"])
    return bool(stat) and stat["start"] == runner["start"] and stat["state"] not in "ZX"  # type: ignore[index]


def verdict(node: str, report: Dict[str, Sequence[str]]) -> Dict[str, Any]:
    """A node's line in the state, from its sweep's report."""
    left = report["left"]
    message = f"could not be ended: {', '.join(left)}" if left else ""
    if report["ended"] and not left:
        message = f"had to be ended: {', '.join(report['ended'][:5])}" + (" …" if len(report["ended"]) > 5 else "")
    return {"node": node, "clean": not left, "killed": len(report["ended"]), "message": message}
