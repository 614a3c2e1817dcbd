"""phalanx get: download results."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from phalanx.cli import complete
from phalanx.cli.carrying import Meter
from phalanx.cli.console import note
from phalanx.cli.options import cluster_option, debug_option, load_cluster
from phalanx.cli.terminal import one_line
from phalanx.errors import JobError
from phalanx.jobs.job import open_job
from phalanx.jobs.transfer import NoFile, get_each, is_pattern

if TYPE_CHECKING:
    from phalanx.cluster.cluster_record import Cluster
    from phalanx.jobs.job import Job


@click.command("get")
@cluster_option
@debug_option
@click.argument("arguments", metavar="[JOB] JOB_PATH... [PATH]", nargs=-1, required=True, shell_complete=complete.jobs)
def command(name: str | None, file: Path | None, arguments: tuple[str, ...]) -> int:
    """Download files and directories of JOB (an id, part of one, or a name; by default the newest job).

    JOB_PATH is relative to the job's working directory, or an absolute path in the shared directory, which needs no
    JOB. It may be a pattern, in quotes: `*` is any part of a name, `**` any number of directories. PATH is on this
    machine. If it is a directory, the files are placed in it, as with cp. Several JOB_PATHs are always placed in a
    directory, which is created if needed.

    Each file appears only when it is complete. A file that exists here with the same size and time is not fetched
    again. If something can't be read, or is a pipe, a socket or a device, it is named, the rest is copied, and the
    exit code is 1. Links that lead out of what is copied are left out, and named.

    JOB may be an array: what its tasks have goes into directories with their numbers.

    With two arguments or more, the first is JOB if there is such a job, and the last is PATH if a JOB_PATH is before
    it.

    \b
    Examples:
      phalanx get checkpoint.pt
      phalanx get checkpoint.pt results/
      phalanx get 261121-0755 checkpoints loss.csv results/
      phalanx get 'checkpoints/*.pt' .
      phalanx get seeds loss.csv results/
      phalanx get /efs/data/labels.csv
    """
    cluster = load_cluster(name, file)
    chosen = _chosen(cluster, arguments)
    _refuse_same_names(chosen.paths)
    fetched = [_has_fetched(cluster, chosen, job, destination) for job, destination in _places(chosen)]
    return 0 if all(fetched) else 1


def _has_fetched(cluster: Cluster, chosen: _Chosen, job: Job | None, destination: str | None) -> bool:
    """Fetch what was chosen from this job. Return whether it is whole."""
    meters: list[Meter] = []

    def meter() -> Meter:
        meters.append(Meter())
        return meters[-1]

    try:
        copies = get_each(cluster, chosen.paths, destination, job, meter)
        is_whole = [meters[-1].end(copied) for copied in copies]
        return all(is_whole)
    except NoFile as error:
        if job is not None and job is not chosen.job:
            note(one_line(f"{error.message} (job {job.id})"))
            return False
        error.hint += chosen.not_a_job
        raise


def _places(chosen: _Chosen) -> list[tuple[Job | None, str | None]]:
    """Return the jobs, and where their files go: those of an array's tasks into directories with their numbers."""
    if chosen.job is None or not chosen.job.has_tasks or all(path.startswith("/") for path in chosen.paths):
        return [(chosen.job, chosen.destination)]
    return [(task, f"{chosen.destination or '.'}/{task.id.rpartition('.')[2]}/") for task in chosen.job.tasks()]


class _Chosen(NamedTuple):
    """The parsed arguments. `not_a_job` says why the first was not taken for a job."""

    job: Job | None
    paths: tuple[str, ...]
    destination: str | None = None
    not_a_job: str = ""


def _chosen(cluster: Cluster, arguments: tuple[str, ...]) -> _Chosen:
    job, words, not_a_job = None, arguments, ""
    if len(arguments) > 1 and not arguments[0].startswith("/"):
        try:
            job, words = open_job(cluster, arguments[0]), arguments[1:]
        except JobError as error:
            not_a_job = f"\n{error.message}."
    paths, destination = (words[:-1], words[-1]) if len(words) > 1 else (words, None)
    if job is None and not all(path.startswith("/") for path in paths):
        try:
            job = open_job(cluster)
        except JobError as error:
            error.hint += not_a_job
            raise
    return _Chosen(job, paths, destination, not_a_job)


def _refuse_same_names(paths: tuple[str, ...]) -> None:
    names = [posixpath.basename(posixpath.normpath(path)) for path in paths if not is_pattern(path)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise click.UsageError(f"two are named '{twice}', and one would replace the other")
