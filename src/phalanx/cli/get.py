"""phalanx get: download results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from phalanx.cli import complete
from phalanx.cli.carrying import Meter
from phalanx.cli.options import cluster_option, debug_option, load_cluster
from phalanx.errors import JobError
from phalanx.jobs.job import open_job
from phalanx.jobs.transfer import TransferError, get

if TYPE_CHECKING:
    from phalanx.cluster.cluster_record import Cluster
    from phalanx.jobs.job import Job


@click.command("get")
@cluster_option
@debug_option
@click.argument("arguments", metavar="[JOB] PATH [DESTINATION]", nargs=-1, required=True, shell_complete=complete.jobs)
def command(name: str | None, file: Path | None, arguments: tuple[str, ...]) -> int:
    """Download a file or directory of JOB (an id, part of one, or a name; by default the newest job).

    PATH is relative to the job's working directory. An absolute PATH in the shared directory needs no JOB. If
    DESTINATION is a directory, the result is placed in it, as with cp. Each file appears only when it is complete.
    What can't be read is named, the rest is copied, and the exit code is 1.
    With two arguments, the first is JOB if there is such a job, and PATH otherwise.

    \b
    Examples:
      phalanx get checkpoint.pt
      phalanx get checkpoint.pt results/
      phalanx get 261121-0755 checkpoints results/
      phalanx get /efs/data/labels.csv
    """
    cluster = load_cluster(name, file)
    chosen = _chosen(cluster, arguments)
    meter = Meter()
    try:
        is_whole = meter.end(get(cluster, chosen.path, chosen.destination, chosen.job, meter))
    except TransferError as error:
        error.hint += chosen.not_a_job
        raise
    return 0 if is_whole else 1


class _Chosen(NamedTuple):
    """The parsed arguments. `not_a_job` says why the first of two was not taken for a job."""

    job: Job | None
    path: str
    destination: str | None = None
    not_a_job: str = ""


def _chosen(cluster: Cluster, arguments: tuple[str, ...]) -> _Chosen:
    is_absolute = arguments[0].startswith("/")
    if len(arguments) > 3 - is_absolute:
        raise click.UsageError(f"unexpected '{arguments[3 - is_absolute]}': give one path at a time")
    if is_absolute:
        return _Chosen(None, *arguments)
    if len(arguments) == 1:
        return _Chosen(open_job(cluster), *arguments)
    try:
        return _Chosen(open_job(cluster, arguments[0]), *arguments[1:])
    except JobError as error:
        if len(arguments) == 3:
            raise
        return _Chosen(open_job(cluster), *arguments, not_a_job=f"\n{error.message}.")
