"""The runner's zipapp on the head, beside any job: sent once per version, and run only if it is what was sent."""

from __future__ import annotations

import shlex

from phalanx.code import bundle
from phalanx.errors import JobError
from phalanx.jobs.head_command import last_words
from phalanx.runner import checked
from phalanx.runner.names import RUNNER
from phalanx.ssh.remote import Completed, Remote

TOOLS = ".phalanx/tools"


def command(shared: str, verb: str, *words: str) -> str:
    """A shell command for the head that runs a verb of the zipapp, or ends with `checked.NOT_THERE`."""
    return "exec " + shlex.join(_argv(shared, verb, *words))


def run(remote: Remote, shared: str, command: str, *, timeout_s: float, check: bool = True) -> Completed:
    """Run what `command` gave and wait; the zipapp is sent first where it is missing. With `check` raises JobError."""
    done = remote.run(command, timeout_s=timeout_s, check=False)
    if done.status == checked.NOT_THERE:
        put(remote, shared)
        done = remote.run(command, timeout_s=timeout_s, check=False)
    if check and done.status != 0:
        raise JobError(f"the head gave no answer: {last_words(done.stderr.decode(errors='replace')) or done.status}")
    return done


def ready(remote: Remote, shared: str) -> None:
    """See to it that the zipapp is there. Raises JobError."""
    run(remote, shared, "exec " + shlex.join(_argv(shared)), timeout_s=30.0)


def put(remote: Remote, shared: str) -> None:
    """Send it. Raises JobError where it can't be written."""
    path = _path(shared)
    place = shlex.quote(path)
    beside = f"{place}.$$"
    command = f"umask 077; mkdir -p $(dirname {place}) && cat > {beside} && mv -T {beside} {place}"
    done = remote.run(command, input=bundle.runner_zip(), timeout_s=120.0, check=False)
    if done.status != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise JobError(
            f"phalanx's runner did not go over to {path}: {said or f'exit code {done.status}'}",
            f"The job user writes there: `phalanx ssh -- df {shared}` shows whether it is mounted and has room.",
        )


def _argv(shared: str, *words: str) -> tuple[str, ...]:
    return checked.first_argv(bundle.runner_digest(), _path(shared), *words)


def _path(shared: str) -> str:
    """Called by its hash: two versions, or what two Pythons compiled, are two files."""
    return f"{shared}/{TOOLS}/{bundle.runner_digest()[:24]}/{RUNNER}"
