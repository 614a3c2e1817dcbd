"""phalanx jobs: list the jobs of a cluster."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx.cli.console import duration, note, print_json, print_table
from phalanx.cli.job_options import pairs
from phalanx.cli.options import cluster_option, debug_option, json_option, load_cluster
from phalanx.jobs.job import list_jobs

if TYPE_CHECKING:
    from phalanx.jobs.job import JobStatus


@click.command("jobs")
@cluster_option
@click.option(
    "--tag", "tags", multiple=True, metavar="NAME=value", callback=pairs, help="Only jobs with this tag. Repeatable."
)
@json_option
@debug_option
def command(name: str | None, file: Path | None, tags: dict[str, str], as_json: bool) -> None:
    """List the jobs, the newest first.

    \b
    Examples:
      phalanx jobs
      phalanx jobs --tag model=resnet
      phalanx jobs --json | jq -r '.[0].id'
    """
    found = [job for job in list_jobs(load_cluster(name, file)) if job.has(tags)]
    if as_json:
        print_json([job.to_json() for job in found])
    elif not found:
        note("No job of this cluster has these tags." if tags else "No job has been run on this cluster yet.")
    else:
        print_table(
            ("JOB", "NAME", "TAGS", "STATE", "LAUNCHER", "PROCESSES", "TOOK", "COMMAND"), [_row(job) for job in found]
        )


def _row(job: JobStatus) -> tuple[object, ...]:
    if job.state.value == "damaged":
        return job.id, "-", "-", job.state.value, "-", "-", "-", job.message
    took = duration(job.duration_s(time.time())) if job.started_at else "-"
    tags = " ".join(f"{name}={value}" for name, value in job.tags.items()) or "-"
    return job.id, job.name or "-", tags, job.state.value, job.launcher, job.processes, took, shlex.join(job.command)
