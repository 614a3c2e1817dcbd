"""state.json of a job: written whole at every transition, and the answer to whether its runner still lives."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from phalanx.node.runner.system import boot_id, process_stat

if TYPE_CHECKING:
    from typing import Any, Dict, Sequence

    State = Dict[str, Any]

PENDING = "pending"
RUNNING = "running"
SUCCEEDED = "succeeded"
FAILED = "failed"
STOPPED = "stopped"
LOST = "lost"
FINAL = (SUCCEEDED, FAILED, STOPPED, LOST)
# Kept from the job's submission to its end, for its last state.
_ROOM = "room"
_ROOM_BYTES = 64 << 10


def initial(job: Dict[str, Any], has_secrets: bool) -> State:
    """The state of a job that was just accepted."""
    return {
        **{key: job[key] for key in ("id", "name", "launcher", "command", "submitted_at")},
        "tags": job.get("tags", {}),
        "state": PENDING,
        "started_at": None,
        "ended_at": None,
        "processes": 0,
        "hosts": [],
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
    """Replace state.json in one step: a reader sees the old one or the new one.

    Raises OSError on a full disk; a final state is written in the room that was kept for it then.
    """
    path, text = os.path.join(directory, "state.json"), json.dumps(state)
    if state["state"] not in FINAL:
        write_file(path, text)
        return
    try:
        write_file(path, text)
    except OSError:
        _give_room(directory)
        write_file(path, text)
    _give_room(directory)


def _give_room(directory: str) -> None:
    try:
        os.unlink(os.path.join(directory, _ROOM))
    except FileNotFoundError:
        pass  # given before, or a job that was taken before there was such a thing


def read(directory: str) -> State:
    """The state as it is now. Raises FileNotFoundError where there is no job."""
    with open(os.path.join(directory, "state.json")) as file:
        return json.load(file)


def write_file(path: str, text: str, mode: int = 0o600) -> None:
    """Write beside and rename."""
    beside = f"{path}.{os.getpid()}"
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
        os.replace(beside, path)
    except OSError:
        os.unlink(beside)
        raise


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
