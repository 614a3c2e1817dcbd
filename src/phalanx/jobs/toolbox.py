"""The runner's zipapp on the head, for commands outside a job: sent once per version, and run only if unchanged."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from phalanx.code import bundle
from phalanx.errors import JobError, SharedSilent
from phalanx.jobs.head_command import error_tail
from phalanx.runner import checked
from phalanx.runner.names import RUNNER
from phalanx.ssh.remote import Broken, Completed, ConnectionLost, NotEnded, Remote
from phalanx.waits import waiting

PATIENCE_S = 5.0
"""How long a command on the head may be silent before the shared directory is looked at."""
TOOLS = ".phalanx/tools"
# A shared directory that takes longer to say how large it is answers nothing.
_LOOK_WITHIN_S = 10
_CLOSED = re.compile(r"belongs to [\w.-]{1,64}, with mode [0-7]{1,5}", re.ASCII)
# A laptop that wakes up, or changes its network, reaches the head again within this.
_RECONNECT_WITHIN_S = 120.0
_RETRY_S = 0.5
_TRIES = 4
# Exit status of the head's shell when that happens (sysexits' EX_TEMPFAIL).
_SILENT = 75

T = TypeVar("T")


def command(shared: str, verb: str, *args: str) -> str:
    """Return a shell command for the head that runs a verb of the zipapp, or ends with `checked.UNAVAILABLE`."""
    return "exec " + shlex.join(_argv(shared, verb, *args))


def run(remote: Remote, shared: str, command: str, *, timeout_s: float, check: bool = True) -> Completed:
    """Run the result of `command` and wait, sending the zipapp first where it is missing.

    If the connection breaks, run it again over a new one, because it may not have begun.

    Raises JobError for a failure, with `check`, and SharedSilent.
    """
    command = f"{_look(shared)}; {command}"

    def run_once() -> Completed:
        return remote.run(command, timeout_s=timeout_s, check=False)

    try:
        done = persist(lambda: remote, run_once)
        if done.status == checked.UNAVAILABLE:
            put(remote, shared)
            done = persist(lambda: remote, run_once)
    except NotEnded:
        require_answer(remote, shared)
        raise
    if done.status == _SILENT:
        raise _silent(shared)
    if check and done.status != 0:
        reason = error_tail(done.stderr.decode(errors="replace")) or f"exit code {done.status}"
        raise JobError(f"the head gave no answer: {reason}", code="no-answer")
    return done


def run_sent(remote: Remote, verb: str, *args: str, timeout_s: float) -> Completed:
    """Run a verb of the zipapp, which is sent with the command, and wait: it needs no shared directory."""
    command = "exec " + shlex.join(checked.first_argv(bundle.runner_digest(), checked.STDIN, verb, *args))
    return remote.run(command, input=bundle.runner_zip(), timeout_s=timeout_s, check=False)


def persist(remote: Callable[[], Remote], copy: Callable[[], T], again: Callable[[], None] = lambda: None) -> T:
    """Return what `copy` returns. If the connection breaks meanwhile, call `again`, and copy over a new one.

    That is done some times. Raises Broken, or ConnectionLost when the head can't be reached for too long.
    """
    for _ in range(_TRIES - 1):
        with suppress(Broken):
            return copy()
        with waiting("a new connection to the head"):
            _reconnect(remote)
        again()
    return copy()


def _reconnect(remote: Callable[[], Remote]) -> None:
    deadline = time.monotonic() + _RECONNECT_WITHIN_S
    while True:
        try:
            remote().connect()
            return
        except ConnectionLost:
            if time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_S)


def require_answer(remote: Remote, shared: str) -> None:
    """Raise SharedSilent if the shared directory, where the zipapp and all jobs are, does not answer."""
    if remote.run(_look(shared), timeout_s=3 * _LOOK_WITHIN_S, check=False).status == _SILENT:
        raise _silent(shared)


def _look(shared: str) -> str:
    """Return a shell command that ends the shell if the shared directory does not answer.

    The size of a file system is always asked of its server. By the shell's own status: `timeout -s KILL` ends with 137.
    """
    look = f"timeout -s KILL {_LOOK_WITHIN_S} stat -f -- {shlex.quote(shared)} >/dev/null 2>&1"
    return f"{look}; [ $? -ne 137 ] || exit {_SILENT}"


def _silent(shared: str) -> SharedSilent:
    hint = "Jobs go on when it does. `phalanx stop`, `phalanx ssh` and `phalanx nodes` work meanwhile."
    return SharedSilent(f"the shared directory {shared} does not answer", hint)


def closed(remote: Remote, shared: str) -> str:
    """Return whose the shared directory is if jobs can't write at its top; "" if they can. Raises PhalanxError."""
    place = shlex.quote(shared)
    look = f"[ -w {place} ] || stat -c 'belongs to %U, with mode %a' -- {place}"
    said = run(remote, shared, look, timeout_s=30.0).stdout.decode(errors="replace").strip().rpartition("\n")[2]
    return said if _CLOSED.fullmatch(said) else ""  # login scripts may print, too


def how_to_open(shared: str) -> str:
    """Return what the user does to let jobs write at the top of the shared directory."""
    return f"Jobs and `put` write as phalanx. `phalanx exec --sudo -- chmod o+rwx,+t {shlex.quote(shared)}` lets them."


def ready(remote: Remote, shared: str) -> None:
    """Send the zipapp unless the head has it. Raises JobError."""
    run(remote, shared, "exec " + shlex.join(_argv(shared)), timeout_s=30.0)


def put(remote: Remote, shared: str) -> None:
    """Send the zipapp. Raises JobError where it can't be written."""
    path = _path(shared)
    place = shlex.quote(path)
    beside = f"{place}.$$"
    command = f"umask 077; mkdir -p $(dirname {place}) && cat > {beside} && mv -T {beside} {place}"
    done = remote.run(command, input=bundle.runner_zip(), timeout_s=120.0, check=False)
    if done.status != 0:
        stderr = done.stderr.decode(errors="replace").strip()
        raise JobError(
            f"phalanx's runner could not be copied to {path}: {stderr or f'exit code {done.status}'}",
            f"Check with `phalanx ssh -- df {shared}` that it is mounted and has room; the job user writes there.",
            code="runner-not-sent",
        )


def _argv(shared: str, *args: str) -> tuple[str, ...]:
    return checked.first_argv(bundle.runner_digest(), _path(shared), *args)


def _path(shared: str) -> str:
    """Return the zipapp's path, which has its hash: versions, and the code of two Pythons, are separate files."""
    return f"{shared}/{TOOLS}/{bundle.runner_digest()[:24]}/{RUNNER}"
