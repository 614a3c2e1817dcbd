"""phalanx jobs: list the jobs of a cluster, or remove old ones."""

from __future__ import annotations

import shlex
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx.cli import complete
from phalanx.cli.console import confirm, duration, note, print_json, print_table, require_terminal
from phalanx.cli.job_options import Duration, pairs
from phalanx.cli.options import cluster_option, debug_option, json_option, load_cluster, yes_option
from phalanx.errors import ClusterError, JobError
from phalanx.jobs.ended_jobs import ended_jobs, space
from phalanx.jobs.job import JobState, list_jobs, open_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from phalanx.cluster.cluster_record import Cluster
    from phalanx.jobs.ended_jobs import EndedJob
    from phalanx.jobs.job import JobStatus

_BY_IMPORTANCE = (
    *("JOB", "STATE", "COMMAND", "REASON", "STARTED", "TOOK", "NAME", "NODES", "ATTEMPT", "TAGS", "PROCESSES"),
    *("LAUNCHER", "COMMIT"),
)


@click.command("jobs")
@cluster_option
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="NAME=value",
    callback=pairs,
    help="A label of the job. Repeatable; only jobs with all of them.",
)
@click.option(
    "--prune",
    "age_s",
    type=Duration(),
    metavar="TIME",
    help="Remove the jobs that ended longer ago than this, such as 30d.",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in JobState]),
    help="Only jobs in this state. Repeatable.",
)
@click.option("--rename", "new_name", metavar="TEXT", help="Give JOB another name.")
@click.option(
    "--set-tag",
    "new_tags",
    multiple=True,
    metavar="NAME=value",
    callback=pairs,
    help="Give JOB this label, too; `NAME=` removes it. Repeatable.",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the N newest.")
@yes_option
@json_option
@debug_option
@click.argument("job", required=False, shell_complete=complete.jobs)
def command(
    name: str | None,
    file: Path | None,
    tags: dict[str, str],
    age_s: int | None,
    states: tuple[str, ...],
    limit: int | None,
    new_name: str | None,
    new_tags: dict[str, str],
    yes: bool,
    as_json: bool,
    job: str | None,
) -> int:
    """List the jobs, the newest first; or only JOB, of an array its tasks; or, with --prune, remove old ones.

    Times are UTC. ATTEMPT is 0 until the first restart. REASON is why a job ended as it did, or what it waits for. A
    narrow terminal has the most important columns; --json and a pipe have all.

    A job keeps its copy of the code, what it wrote there, and its output until it is removed. --prune removes all
    of that, but no running jobs and no checkpoints.

    \b
    Examples:
      phalanx jobs
      phalanx jobs --tag model=resnet --state failed
      phalanx jobs --limit 10
      phalanx jobs seeds
      phalanx jobs 261121-0755 --rename baseline --set-tag model=resnet
      phalanx jobs --json | jq -r '.[0].id'
      phalanx jobs --prune 30d
    """
    changes = bool(new_tags) or new_name is not None
    if age_s is not None and (states or limit or job or changes):
        others = "JOB, --state, --limit, --rename and --set-tag"
        raise click.UsageError(f"--prune removes jobs by their age and --tag: leave {others} out")
    if age_s is not None:
        return _prune(load_cluster(name, file), time.time() - age_s, tags, yes, as_json)
    if yes:
        raise click.UsageError("--yes is for --prune")
    cluster = load_cluster(name, file)
    changed = []
    if changes:
        if job is None:
            raise click.UsageError("--rename and --set-tag change one job: name it")
        changed = [open_job(cluster, job).label(new_name, new_tags)]
    chosen = states or tuple(JobState)
    listed = changed or (list_jobs(cluster) if job is None else _of(cluster, job))
    found = [job for job in listed if job.has(tags) and job.state.value in chosen][:limit]
    if as_json:
        print_json([job.to_json() for job in found])
    elif not found:
        is_choice = tags or states or job
        note("No job of this cluster is among these." if is_choice else "No job has been run on this cluster yet.")
    else:
        rows = [_row(job) for job in found]
        print_table(list(rows[0]), [list(row.values()) for row in rows], _BY_IMPORTANCE)
        _warn_of_space(cluster)
    return 0


def _of(cluster: Cluster, reference: str) -> list[JobStatus]:
    """Return the tasks of an array that have begun, in their order, or the job itself."""
    status = open_job(cluster, reference).status()
    tasks = list_jobs(cluster, status.id) if status.tasks else [status]
    return sorted(tasks, key=lambda task: (len(task.id), task.id))


def _prune(cluster: Cluster, before: float, tags: dict[str, str], yes: bool, as_json: bool) -> int:
    """Remove jobs that ended before this time, after a question; return 1 if one of them is left."""
    if not yes:
        require_terminal()
        if old := ended_jobs(cluster, before, tags):
            confirm(f"Remove {_count(old)}, with all that they wrote in their copies of the code?")
    done = ended_jobs(cluster, before, tags, remove=True)
    removed = [job for job in done if job.removed]
    if as_json:
        print_json({"jobs": [vars(job) for job in done], "freed_bytes": sum(job.bytes for job in removed)})
    else:
        note(f"removed {_count(removed)}" if done else "No job ended that long ago.")
        for job in done:
            if not job.removed:
                note(f"{job.id} can't be removed whole: it has files that the job user may not remove")
    return 0 if len(removed) == len(done) else 1


def _count(jobs: list[EndedJob]) -> str:
    return f"{len(jobs)} job{'s' * (len(jobs) != 1)} ({_size(sum(job.bytes for job in jobs))})"


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _warn_of_space(cluster: Cluster) -> None:
    """Say that jobs take much of the shared directory. Nothing else depends on it, so no failure counts."""
    with suppress(ClusterError, JobError):
        if (taken := space(cluster)).is_large:
            note(
                f"The jobs take at least {_size(taken.bytes)} of the shared directory: "
                "`phalanx jobs --prune 30d` removes those that ended 30 days ago."
            )


def _progress(tasks: Mapping[str, int]) -> str:
    """Return how many tasks of an array are in each state; "" for another job."""
    counts = ", ".join(f"{count} {state}" for state, count in tasks.items() if count)
    return f"{sum(tasks.values())} tasks: {counts}" if tasks else ""


def _short(commit: str) -> str:
    """Return a commit as git shortens it."""
    oid, dirty, _ = commit.partition("-dirty")
    return f"{oid[:10]}{dirty}" or "-"


def _row(job: JobStatus) -> dict[str, object]:
    """Return the cells of a job by their columns."""
    is_known = job.state is not JobState.DAMAGED
    return {
        "JOB": job.id,
        "NAME": job.name or "-",
        "STATE": job.state.value,
        "STARTED": time.strftime("%m-%d %H:%M", time.gmtime(job.started_at)) if job.started_at else "-",
        "TOOK": duration(job.duration_s(time.time())) if job.started_at else "-",
        "NODES": len(job.ranks) or "-",
        "PROCESSES": job.processes if is_known else "-",
        "ATTEMPT": job.attempt if job.restarts else "-",
        "LAUNCHER": job.launcher or "-",
        "COMMIT": _short(job.commit),
        "TAGS": " ".join(f"{name}={value}" for name, value in job.tags.items()) or "-",
        "COMMAND": shlex.join(job.command) or "-",
        "REASON": job.message or ("" if job.state.final else _progress(job.tasks)) or "-",
    }
