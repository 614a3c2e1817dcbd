"""phalanx logs: the output of a job."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli.options import cluster_option_long, debug_option, load_cluster


@click.command("logs")
@cluster_option_long
@click.option("-f", "--follow", "wait", is_flag=True, help="Go on until the job ends.")
@click.option("--rank", metavar="N", help="Only this process: a rank, or a label such as mpiexec.")
@debug_option
@click.argument("job", required=False)
def command(name: str | None, file: Path | None, wait: bool, rank: str | None, job: str | None) -> int:
    """Show the output of JOB (an id, the beginning of one, or a name; default: the newest).

    With -f it goes on until the job ends, and ends with the job's exit code.

    \b
    Examples:
      phalanx logs
      phalanx logs -f
      phalanx logs 261121-0755 --rank 3
    """
    from phalanx.cli.following import follow
    from phalanx.job import open_job

    status = follow(open_job(load_cluster(name, file), job), wait=wait, process=rank)
    return status if wait else 0
