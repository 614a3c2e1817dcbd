"""The runner's zipapp on the head, beside any job: put on the shared directory once per version."""

from __future__ import annotations

import shlex

from phalanx import bundle
from phalanx.errors import JobError
from phalanx.node.runner.names import RUNNER
from phalanx.remote import Remote

TOOLS = ".phalanx/tools"


def path(shared: str) -> str:
    """Where it is, if it is there: this version's alone, so that nobody ever changes it."""
    return f"{shared}/{TOOLS}/{bundle.runner_version()}/{RUNNER}"


def put(remote: Remote, shared: str) -> None:
    """Send it. Raises JobError where it can't be written."""
    place = shlex.quote(path(shared))
    beside = f"{place}.$$"
    command = f"umask 077; mkdir -p $(dirname {place}) && cat > {beside} && mv {beside} {place}"
    done = remote.run(command, input=bundle.runner_zip(), timeout_s=120.0, check=False)
    if done.status != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise JobError(
            f"phalanx's runner did not go over to {path(shared)}: {said or f'exit code {done.status}'}",
            f"The job user writes there: `phalanx ssh -- df {shared}` shows whether it is mounted and has room.",
        )


def command(remote: Remote, shared: str, verb: str, *words: str) -> str:
    """A shell command for the head that runs a verb of the zipapp, which is sent first where it is not there yet."""
    place = path(shared)
    if remote.run(f"test -e {shlex.quote(place)}", timeout_s=30.0, check=False).status != 0:
        put(remote, shared)
    return "exec " + shlex.join(["python3", "-IS", place, verb, *words])
