"""phalanx get: results home."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli import complete
from phalanx.cli.options import cluster_option, debug_option, load_cluster


@click.command("get")
@cluster_option
@debug_option
@click.argument("words", metavar="[JOB] PATH [DESTINATION]", nargs=-1, required=True, shell_complete=complete.jobs)
def command(name: str | None, file: Path | None, words: tuple[str, ...]) -> None:
    """Bring a file or directory home from JOB (an id, part of one, or a name; alone, PATH is the newest job's).

    PATH is relative to the directory that the job ran in. An absolute PATH below the shared directory needs no JOB.
    A destination that is a directory gets it inside, as with cp; each file appears whole or not at all.

    \b
    Examples:
      phalanx get checkpoint.pt
      phalanx get 261121-0755 checkpoints results/
      phalanx get /efs/data/labels.csv
    """
    from phalanx.cli.carrying import Meter
    from phalanx.errors import JobError
    from phalanx.jobs.job import open_job
    from phalanx.reach.transfer import get

    reference, path, destination = _sorted_out(words)
    cluster = load_cluster(name, file)
    try:
        job = None if path.startswith("/") else open_job(cluster, reference)
    except JobError as error:
        if len(words) == 2:
            error.hint += f"\nOf two words the first is the job: `phalanx get JOB {words[0]} {words[1]}`."
        raise
    meter = Meter()
    meter.end(get(cluster, path, destination, job, meter))


def _sorted_out(words: tuple[str, ...]) -> tuple[str | None, str, str | None]:
    """(JOB, PATH, DESTINATION): only the path is always there, and an absolute one has no job."""
    first, *rest = words
    if first.startswith("/") or not rest:
        reference, path, *tail = (None, first, *rest)
    else:
        reference, path, *tail = words
    if len(tail) > 1:
        raise click.UsageError(f"unexpected '{tail[1]}': one path at a time")
    return reference, path, tail[0] if tail else None
