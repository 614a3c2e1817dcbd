"""Stops a job on request, through its runner, or, when that is gone, in this process.

While the shared directory does not answer, only the runner's socket is left: it needs no file.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from contextlib import suppress

from phalanx.node.validate import Invalid, Newer
from phalanx.runner.files import job_record
from phalanx.runner.files import state as states
from phalanx.runner.files.array import array_of
from phalanx.runner.files.job_status import JobState, JobStatus
from phalanx.runner.files.schema import is_job_id
from phalanx.runner.head.runner_socket import MOST_BYTES, STOP_WISH, connect_follower, request_stop, socket_name
from phalanx.runner.head.settle import is_foreign, left_alone, settle, verify
from phalanx.runner.loop import is_readable
from phalanx.runner.names import RUNNER_GONE, STILL_RUNS, STOP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Sequence

_LOOK_EVERY_S = 0.1
# Of ids as clients make them: starters' sockets have longer names. Those of others may contain any bytes.
_ID = r"[0-9]{6}-[0-9]{6}-[0-9a-f]{6}(?:\.[0-9]{1,4})?"
_SOCKET = re.compile(f" @{socket_name('')}({_ID})$", re.MULTILINE | re.ASCII)


def stop(directory: str, stack: str, timeout_s: float) -> int:
    """Stop the job and print its final status as one JSON line; return 1 when it did not end in time.

    A job of another cluster, by the stack, is left alone. Of an array, tasks that run without a conductor end, too.
    """
    deadline = time.monotonic() + timeout_s + _grace_s(directory)
    status = _stopped(directory, stack, deadline)
    _stop_tasks(_tasks_of(directory), stack, deadline)
    print(json.dumps(status.to_record()))
    return 0 if status.state.final else 1


def _tasks_of(directory: str) -> List[str]:
    root, array = os.path.split(os.path.abspath(directory))
    return [os.path.join(root, name) for name in os.listdir(root) if is_job_id(name) and array_of(name) == array]


def _stop_tasks(tasks: Sequence[str], stack: str, deadline: float) -> None:
    """Stop tasks that run: all are asked before the first one is waited for, because each may take its whole grace."""
    asked = [connect_follower(states.job_id_of(task), STOP_WISH) for task in tasks]
    for runner in filter(None, asked):
        with runner, suppress(OSError):
            while (left_s := deadline - time.monotonic()) > 0:
                runner.settimeout(left_s)
                if not runner.recv(MOST_BYTES):
                    break
    for task in tasks:
        with suppress(FileNotFoundError, NotADirectoryError):  # it was never begun, or is no task's
            _stopped(task, stack, deadline)


def _stopped(directory: str, stack: str, deadline: float) -> JobStatus:
    try:
        status = states.read(directory)
        return left_alone(status) if is_foreign(status, stack) else _stop(directory, deadline)
    except Invalid:
        return _stop_damaged(directory, deadline)


def _grace_s(directory: str) -> int:
    """Return how long the job's processes may take to end; 0 if its record can't be read."""
    try:
        return job_record.read(directory).grace_s
    except (OSError, Invalid):
        return 0


def _stop(directory: str, deadline: float) -> JobStatus:
    status = states.read(directory)
    # Repeated, because the runner may die meanwhile and another one take over the job.
    while not status.state.final and time.monotonic() < deadline:
        if status.runner and states.runner_lives(status.runner):
            _stop_runner(status.runner.pid, deadline - time.monotonic())
        status = settle(directory, is_stop=True)
        time.sleep(0.0 if status.state.final else _LOOK_EVERY_S)
    return status


def _stop_damaged(directory: str, deadline: float) -> JobStatus:
    """Stop a job with a damaged record: its runner writes a valid record; without a runner, this process does.

    The record of a newer phalanx, and what a link leads to, stays as it is.
    """
    for _ in request_stop(states.job_id_of(directory), deadline - time.monotonic()):
        pass
    try:
        return _stop(directory, deadline)
    except Invalid as error:
        over = states.damaged(directory, error)
        # A link leads to the record of another job.
        is_kept = isinstance(error, Newer) or os.path.islink(directory)
    message = f"stopped on request; {over.message}"
    over = over._replace(state=JobState.STOPPED, message=message, nodes=verify(directory), ended_at=time.time())
    if not is_kept:
        states.set_aside(directory)
        states.write(directory, over)
    return over


def _stop_runner(pid: int, timeout_s: float) -> None:
    try:
        # The descriptor stays bound to this process, even if its pid is used again.
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    signal.pidfd_send_signal(handle, STOP)
    is_readable(handle, timeout_s)
    os.close(handle)


def halt(reference: str, timeout_s: float) -> int:
    """Stop a running job without a look at the shared directory, and print its final state as one JSON line.

    `reference` is its id, the beginning or end of it, or "" for the newest that runs. Return 1 with a reason on stderr
    if there is none or more than one; STILL_RUNS if its runner has not ended it in time: it will, when it can; and
    RUNNER_GONE if the runner ended without a final state, or before it was asked.
    """
    deadline = time.monotonic() + timeout_s
    ids = running()
    chosen = meant(reference, ids)
    if len(chosen) != 1:
        print(f"of the running jobs ({', '.join(ids) or 'none'}), {len(chosen)} match", file=sys.stderr)
        return 1
    state = b""
    for part in request_stop(chosen[0], timeout_s):
        state += part
        if state.endswith(b"\n"):
            print(state.decode(errors="replace"), end="")
            return 0
    print(chosen[0], file=sys.stderr)
    return STILL_RUNS if time.monotonic() >= deadline else RUNNER_GONE


def meant(reference: str, ids: Sequence[str]) -> List[str]:
    """Return the ids that begin or end like `reference`, or for "" the first; of a task, only if it has a task's."""
    of_kind = [one for one in ids if bool(array_of(one)) is bool(array_of(reference))]
    near = [one for one in of_kind if one.startswith(reference) or one.endswith(reference)]
    return near if reference else of_kind[:1]


def running() -> List[str]:
    """Return the ids of the jobs whose runners have their sockets on this machine, the newest first."""
    with open("/proc/net/unix", errors="replace") as file:
        return sorted({*_SOCKET.findall(file.read())}, reverse=True)
