"""Start a job that a command line describes, or show what it would start: `run` and `launch` alike."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from phalanx.cli.console import note, print_json, say

if TYPE_CHECKING:
    from phalanx.cluster.cluster_record import Cluster
    from phalanx.jobs.job import Job, JobSpec
    from phalanx.runner.process import Process


def start(cluster: Cluster, spec: JobSpec, detach: bool) -> int:
    """Submit it and follow it to its end, or leave it; returns the exit code for the shell."""
    from phalanx.cli.following import Terminated, follow
    from phalanx.jobs.job import submit

    Terminated.catch()
    job = submit(cluster, spec, detach=detach, progress=_sent)
    if detach:
        return _left(job)
    return follow(job, stop_on_interrupt=True)


def _left(job: Job) -> int:
    say(job.id)
    note(f"`phalanx logs -f {job.id}` follows it, `phalanx stop {job.id}` ends it.")
    return 0


def _sent(progress: Any) -> None:
    if progress.warning:
        note(f"warning: {progress.warning}")


def print_processes(cluster: Cluster, spec: JobSpec, as_json: bool) -> int:
    """What would be started where, and nothing else; returns 0."""
    from phalanx.jobs.job import processes
    from phalanx.launchers import load

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
