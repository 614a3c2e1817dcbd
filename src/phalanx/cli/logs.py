"""phalanx logs: the output of a job."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli import complete
from phalanx.cli.options import cluster_option_long, debug_option, load_cluster


@click.command("logs")
@cluster_option_long
@click.option("-f", "--follow", "wait", is_flag=True, help="Go on until the job ends.")
@click.option("--rank", metavar="N", help="Only this process: a rank, or a label such as mpiexec.")
@click.option("--attempt", metavar="K", type=click.IntRange(0), help="Of a job that was restarted: the K-th restart's.")
@debug_option
@click.argument("job", required=False, shell_complete=complete.jobs)
def command(
    name: str | None, file: Path | None, wait: bool, rank: str | None, attempt: int | None, job: str | None
) -> int:
    """Show the output of JOB (an id, the beginning of one, or a name; default: the newest).

    With -f it goes on until the job ends, and ends with the job's exit code. Of a job that was restarted it shows
    the present attempt; --attempt 0 shows the first.

    \b
    Examples:
      phalanx logs
      phalanx logs -f
      phalanx logs 261121-0755 --rank 3
    """
    from phalanx.cli.following import follow
    from phalanx.job import open_job

    found = open_job(load_cluster(name, file), job)
    status = follow(found, wait=wait, process=rank, attempt=-1 if attempt is None else attempt)
    return status if wait else 0
