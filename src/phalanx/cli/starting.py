"""Start the job of a command line, or show its processes; shared by `run`, `launch`, `data` and `put`."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.cli.console import note, print_json, say
from phalanx.cli.following import Terminated, follow
from phalanx.cli.mounted import scattered
from phalanx.cli.terminal import one_line
from phalanx.counts import counted, first_of, size_text
from phalanx.jobs.job import processes, submit
from phalanx.launchers import load

if TYPE_CHECKING:
    from phalanx.cluster.cluster_record import Cluster
    from phalanx.code.bundle import Opening, SendProgress
    from phalanx.code.code_tree import LeftOut
    from phalanx.jobs.job import Job, JobSpec
    from phalanx.runner.process import Process

_MOST_LEFT_OUT = 3
# Variables of pip and uv that name another index than PyPI.
_INDEXES = frozenset(("PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_CONFIG_FILE", "UV_INDEX_URL", "UV_DEFAULT_INDEX"))


def start(cluster: Cluster, spec: JobSpec, detach: bool, quiet: bool = False) -> int:
    """Submit the job and follow it unless `detach`; return the exit code for the shell."""
    Terminated.catch()
    if cluster.by_session and spec.environment and not _INDEXES & spec.environment.variables.keys():
        note(
            f"{_place(cluster)}: packages that the image lacks must come from a mirror in its network. Name the mirror "
            "with --build-env PIP_INDEX_URL=… or in the image's pip settings"
        )
    if cluster.spec.get("data"):
        for text in scattered(cluster, spec.command):
            note(f"warning: {one_line(text)}")
    job = submit(cluster, spec, detach=detach, progress=_warn if quiet else _report)
    if detach:
        return _detached(job, quiet)
    return follow(job, stop_on_interrupt=True, cluster=cluster.name, quiet=quiet, is_new=True)


def start_own(cluster: Cluster, job: Callable[[Path], JobSpec]) -> int:
    """Run a job of phalanx's own, whose code is written into the directory it is called with; return its exit code."""
    cluster.require_ready()
    with tempfile.TemporaryDirectory() as parent:
        return start(cluster, job(Path(parent) / "code"), detach=False)


def _place(cluster: Cluster) -> str:
    """Say that nodes are cut off; whether a subnet of the user's has a way out is not in the cluster's record."""
    if "head_subnet" in (cluster.spec.get("network") or {}):
        return f"no node of {cluster.name} has a public address, and without another way out of its subnet"
    return f"no node of {cluster.name} reaches the internet"


def _detached(job: Job, quiet: bool) -> int:
    say(job.id)
    if not quiet:
        note(f"`phalanx logs -f {job.id}` follows it, `phalanx stop {job.id}` ends it.")
    return 0


def _report(progress: SendProgress) -> None:
    _warn(progress)
    if progress.opening:
        note(one_line(_opening(progress.opening)))


def _warn(progress: SendProgress) -> None:
    if progress.warning:
        note(f"warning: {one_line(progress.warning)}")


def _opening(job: Opening) -> str:
    """Return one line: what the job is, what is sent for it, and what is not."""
    where = f"{counted(job.ranks, 'rank')} on {counted(job.nodes, 'node')}"
    sends = f"{counted(job.files, 'file')}, {size_text(job.bytes)}" + ", of which only changes" * job.in_parts
    kept = first_of((f"{one.name} by {one.file}, {_size(one)}" for one in job.left_out), "; ", most=_MOST_LEFT_OUT)
    stays = f"; not sent: {kept}" if kept else ""
    each = f"{counted(job.tasks, 'task')}, each " if job.tasks else ""
    return f"job {job.id} starts: {each}{job.launcher}, {where}; sends {sends}{stays}"


def _size(one: LeftOut) -> str:
    return size_text(one.bytes) if one.is_whole else f"at least {size_text(one.bytes)}"


def print_processes(cluster: Cluster, spec: JobSpec, as_json: bool) -> int:
    """Print the processes that would be started, without starting them; return 0."""
    hidden = dict.fromkeys(spec.secrets, "****")
    planned = [
        (process, {**spec.env, **process.env, **hidden})
        for process in processes(load(spec.launcher), spec, cluster.roster())
    ]
    if as_json:
        print_json([_record(process, env) for process, env in planned])
        return 0
    for process, env in planned:
        variables = "".join(f"{key}={shlex.quote(value)} " for key, value in sorted(env.items()))
        role = f" [{process.name}]" if process.role else ""
        say(f"{process.node}{role}: {variables}{shlex.join(process.argv)}")
    return 0


def _record(process: Process, env: dict[str, str]) -> dict[str, Any]:
    plain = ("name", "node", "role", "service", "ports", "argv")
    return {**{field: getattr(process, field) for field in plain}, "processes": dict(process.ranks), "env": env}
