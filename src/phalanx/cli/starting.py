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
from phalanx.jobs.job import processes, submit
from phalanx.launchers import load

if TYPE_CHECKING:
    from phalanx.cluster.cluster_record import Cluster
    from phalanx.jobs.job import Job, JobSpec
    from phalanx.runner.process import Process


# Variables of pip and uv that name another index than PyPI.
_INDEXES = frozenset(("PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_CONFIG_FILE", "UV_INDEX_URL", "UV_DEFAULT_INDEX"))


def start(cluster: Cluster, spec: JobSpec, detach: bool) -> int:
    """Submit the job and follow it unless `detach`; return the exit code for the shell."""
    Terminated.catch()
    if cluster.by_session and spec.environment and not _INDEXES & spec.environment.variables.keys():
        note(
            f"{_place(cluster)}: what the image lacks of the environment must come from a mirror in its network, which "
            "--build-env PIP_INDEX_URL=… or the image's pip settings name"
        )
    if cluster.spec.get("data"):
        for text in scattered(cluster, spec.command):
            note(f"warning: {text}")
    job = submit(cluster, spec, detach=detach, progress=_warn)
    if detach:
        return _detached(job)
    return follow(job, stop_on_interrupt=True, cluster=cluster.name)


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


def _detached(job: Job) -> int:
    say(job.id)
    note(f"`phalanx logs -f {job.id}` follows it, `phalanx stop {job.id}` ends it.")
    return 0


def _warn(progress: Any) -> None:
    if progress.warning:
        note(f"warning: {progress.warning}")


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
