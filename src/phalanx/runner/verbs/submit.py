"""Accepts a job from the client: a daemon becomes its runner, and this process follows it."""

from __future__ import annotations

import errno
import json
import os
import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from phalanx.node import validate
from phalanx.objects import trees
from phalanx.runner import checked
from phalanx.runner.files import state as states
from phalanx.runner.files.job_record import JobRecord, with_commit
from phalanx.runner.head.membership import read_roster
from phalanx.runner.head.slots import Occupancy, ranks_of
from phalanx.runner.names import LAST_SENT, RECORD, REFUSED_STATUS, RUNNER, STDIN, SUBMITTER, WORK, refusal
from phalanx.runner.process import PreparedJob, RefusedError, planned
from phalanx.runner.system import NO_ROOM, forget_other_jobs, raise_file_limit, roster_path, spawn
from phalanx.runner.verbs import checkpoints
from phalanx.runner.verbs.follow import follow

if TYPE_CHECKING:
    from typing import Any, BinaryIO, Dict, Mapping, Optional, Sequence, Tuple

    from phalanx.node.roster import Roster
    from phalanx.runner.plugins import Plugins
    from phalanx.runner.process import Process

# tar accepts an archive that is cut off between two members, so the last member's presence is checked.
_UNPACK = 'head -c "$2" | tar -x -f - --no-same-owner -C "$1" && [ -e "$1/$3" ]'


def submit(directory: str, plugins: Plugins, detach: bool) -> int:
    """Receive a job on stdin into this directory, and start it. Return an exit status.

    Unless `detach`, follow the job to its end.
    """
    os.umask(0o077)
    forget_other_jobs()
    # Here, because the head's starter and its processes inherit it.
    raise_file_limit()
    try:
        job = checkpoints.continued(directory, _read_job())
        _require_jobs(directory, (*job.after, *job.after_any))
        roster = _roster()
        occupancy = Occupancy(directory)
        processes = _planned(job, directory, plugins, roster, occupancy)
        _make(directory, roster)
    except (RefusedError, EOFError, OSError) as error:
        return _refuse(error)
    try:
        ranks = ranks_of(processes)
        plan = {"launcher": job.launcher, "ranks": sum(ranks.values()), "nodes": len(ranks)}
        os.write(1, json.dumps({"plan": plan}).encode() + b"\n")
        secrets, commit = _receive(directory)
        job = with_commit(replace(job, secrets=secrets), commit)
        checkpoints.require_secrets(directory, job)
        _take_stdin(directory, job.resume)
        job = checkpoints.claim(directory, job, occupancy.running)
        _link(directory, job.links)
        # Checked again, because a secret may have the name of a variable that the launcher sets.
        _planned(job, directory, plugins, roster, occupancy)
        _keep(job, directory)
    except (RefusedError, EOFError, OSError) as error:
        trees.remove(directory)
        return _refuse(error)
    # Here, because a refused job needs none of it.
    from phalanx.runner.head.begin import begin

    begin(directory, job, plugins, roster)
    if not detach:
        return follow(directory, job.stack)
    os.write(1, json.dumps({"shares": occupancy.shared(processes, roster)}).encode() + b"\n")
    return 0


def _read_job() -> JobRecord:
    size = _read_sizes()["record"]
    text = b""
    while len(text) < size:
        text += _read(size - len(text))
    try:
        return JobRecord.from_record(validate.parse(text))
    except validate.Invalid as error:
        raise RefusedError(f"the job's record is invalid: {error}", code="bad-record") from error


def _read_sizes() -> Dict[str, Any]:
    """Read a line byte by byte, because what follows may be for another process."""
    line = b""
    while not line.endswith(b"\n"):
        line += _read(1)
    return json.loads(line)


def _read(most_bytes: int) -> bytes:
    data = os.read(0, most_bytes)
    if not data:
        raise EOFError("the submission ended too early")
    return data


def _roster() -> Roster:
    try:
        return read_roster()
    except FileNotFoundError:
        raise RefusedError(
            f"there is no {roster_path()}: this is not the head of a cluster that is ready\n"
            "`phalanx status` shows the state of the cluster.",
            code="no-roster",
        ) from None


def _require_jobs(directory: str, ids: Sequence[str]) -> None:
    """Raise RefusedError unless all of these jobs are here: one that was never here would not end."""
    for one in ids:
        if not os.path.isdir(os.path.join(os.path.dirname(directory), one)):
            raise RefusedError(f"there is no job {one} to begin after\n`phalanx jobs` lists the jobs.", code="no-job")


def _planned(
    job: JobRecord, directory: str, plugins: Plugins, roster: Roster, occupancy: Occupancy
) -> Sequence[Process]:
    prepared = PreparedJob.of(job, directory)
    return planned(plugins.launcher(job.launcher), prepared, occupancy.roomy(prepared, roster))


def _make(directory: str, roster: Roster) -> None:
    """Create the job's directory, with this process's identity and the runner. Raises OSError, RefusedError."""
    try:
        os.makedirs(directory)
    except FileExistsError:
        raise RefusedError(
            f"{directory} belongs to another job\nRun the command again: each job gets a random id.", code="job-exists"
        ) from None
    try:
        with open(os.path.join(directory, SUBMITTER), "w") as file:
            json.dump(states.this_runner(roster.head.instance_id)._asdict(), file)
        checked.keep(os.path.join(directory, RUNNER))
    except OSError:
        trees.remove(directory)
        raise


def _receive(directory: str) -> Tuple[Dict[str, str], str]:
    """Receive the code into the directory; return the job's secrets and the code's commit. Raises EOFError, OSError."""
    sizes = _read_sizes()
    unpacker = spawn(("sh", "-c", _UNPACK, "sh", directory, str(sizes["tar"]), LAST_SENT), os.environ, (0, 2, 2))
    if os.waitpid(unpacker, 0)[1] != 0:
        disk = os.statvfs(directory)
        # A file that it could not write is smaller than the archive, or than a block.
        if disk.f_bavail * disk.f_frsize < max(sizes["tar"], disk.f_frsize) or disk.f_favail == 0 < disk.f_files:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise EOFError("the code could not be unpacked, or ended too early")
    # Over stdin and into memory: into no argument, no file, and no environment but that of the job's processes.
    secrets = _read_secrets(sys.stdin.buffer, sizes["secrets"])
    if sizes["in_parts"]:
        _unpack(directory, sys.stdin.buffer)
    return secrets, sizes["commit"]


def _take_stdin(directory: str, earlier: Optional[str]) -> None:
    """Give the job the input of the job that it continues, unless it has its own. Raises OSError."""
    stdin = os.path.join(directory, STDIN)
    if earlier and not os.path.exists(stdin):
        with suppress(FileNotFoundError):
            os.link(os.path.join(os.path.dirname(directory), earlier, STDIN), stdin)


def _link(directory: str, links: Mapping[str, str]) -> None:
    """Make the job's links in its copy of the code. Raises RefusedError, OSError."""
    work, shared = os.path.join(directory, WORK), os.path.dirname(os.path.dirname(os.path.dirname(directory)))
    for path, target in links.items():
        link, target = os.path.join(work, path), os.path.join(shared, target)
        if not os.path.exists(target):
            raise RefusedError(
                f"--link {path}: there is no {target} on the head\n"
                "`phalanx put` and `phalanx data fetch` place data on the shared directory.",
                code="no-link-target",
            )
        if os.path.lexists(link):
            raise RefusedError(
                f"--link {path}: the code has its own {path}\nRemove or ignore it, or use another name.",
                code="link-in-the-way",
            )
        os.makedirs(os.path.dirname(link), exist_ok=True)
        os.symlink(target, link)


def _read_secrets(stdin: BinaryIO, count: int) -> Dict[str, str]:
    text = stdin.read(count)
    if len(text) < count:
        raise EOFError("the secrets ended too early")
    return json.loads(text or "{}")


def _unpack(directory: str, stdin: BinaryIO) -> None:
    # Here, because most jobs' code is small and comes whole.
    from phalanx.runner.files.codestore import unpack

    unpack(directory, stdin, lambda text: os.write(1, text))


def _keep(job: JobRecord, directory: str) -> None:
    """Write the record, without the secrets, and reserve space for the last state. Raises OSError."""
    states.write_file(os.path.join(directory, RECORD), json.dumps(job.to_record()), is_synced=True)
    states.sync_directory(os.path.dirname(directory))
    states.keep_room(directory)


def _refuse(error: Exception) -> int:
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        error = RefusedError(
            f"the shared directory has no room for the job: {error.strerror}\n"
            "`phalanx jobs --prune TIME` removes jobs that ended earlier; `phalanx exec --node head -- rm …` "
            "removes other files.",
            code="disk-full",
        )
    if isinstance(error, RefusedError):
        print(refusal(error.code, error), file=sys.stderr)
        return REFUSED_STATUS
    print(error, file=sys.stderr)
    return 1
