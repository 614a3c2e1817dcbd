"""phalanx logs: the output of a job."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx.cli import complete
from phalanx.cli.options import cluster_option_long, debug_option, load_cluster
from phalanx.errors import JobError

if TYPE_CHECKING:
    from phalanx.cluster import Cluster
    from phalanx.job import Job


@click.command("logs")
@cluster_option_long
@click.option("-f", "--follow", "wait", is_flag=True, help="Go on until the job ends.")
@click.option("--rank", metavar="N", help="Only this process: a rank, or a name such as mpiexec or 'server 0'.")
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

    cluster = load_cluster(name, file)
    found = open_job(cluster, job)
    status = follow(found, wait=wait, process=rank, attempt=-1 if attempt is None else attempt)
    if rank is not None:
        _require(rank, cluster, found)
    return status if wait else 0


def _require(rank: str, cluster: Cluster, job: Job) -> None:
    """Raise JobError when the job has no such process. Asked afterwards: ranks become known as they begin."""
    index = cluster.remote().run(f"cat {shlex.quote(f'{job.directory}/output/processes')}", timeout_s=20, check=False)
    labels = {json.loads(line)["label"] for line in index.stdout.splitlines()}
    if rank not in labels:
        raise JobError(f"job {job.id} has no process '{rank}'", _listed(labels))


def _by_number(label: str) -> tuple[str, int, str]:
    role, _, number = label.rpartition(" ")
    return (role, int(number), "") if number.isdigit() else (label, 0, "")


def _listed(labels: set[str]) -> str:
    ranks = sorted(int(label) for label in labels if label.isdigit())
    words = [f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 2 else " and ".join(map(str, ranks))] if ranks else []
    words += sorted((label for label in labels if not label.isdigit()), key=_by_number)
    return f"It has {', '.join(words)}." if words else "None of its processes has begun."
