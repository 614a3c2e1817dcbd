"""phalanx stop: end a job and verify that it is gone."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli import complete
from phalanx.cli.following import report_stopped
from phalanx.cli.options import cluster_option, debug_option, load_cluster
from phalanx.errors import SharedSilent
from phalanx.jobs.halting import halt
from phalanx.jobs.job import open_job


@click.command("stop")
@cluster_option
@debug_option
@click.argument("job", required=False, shell_complete=complete.jobs)
def command(name: str | None, file: Path | None, job: str | None) -> int:
    """Stop JOB (default: the newest) and prove that no process of it is left on any node.

    \b
    Examples:
      phalanx stop
      phalanx stop 261121-075512-3fa9
    """
    cluster = load_cluster(name, file)
    try:
        found = open_job(cluster, job)
    except SharedSilent as silence:
        return report_stopped(halt(cluster.remote(), cluster.shared, job or "", silence))
    return report_stopped(found.stop())
