"""phalanx logs: show the output of a job."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx.cli import complete, kept_output
from phalanx.cli.console import note
from phalanx.cli.following import Printer, Style, follow
from phalanx.cli.options import cluster_name, cluster_option, debug_option, load_cluster
from phalanx.errors import ClusterError, ClusterGone, JobError
from phalanx.jobs.job import open_job
from phalanx.node.validate import Invalid, parse
from phalanx.runner.files.record import MOST_BYTES
from phalanx.runner.files.schema import output_process

if TYPE_CHECKING:
    from phalanx.cluster.cluster_record import Cluster
    from phalanx.jobs.job import Job


@click.command("logs")
@cluster_option
@click.option("-f", "--follow", "wait", is_flag=True, help="Continue until the job ends.")
@click.option("--rank", metavar="N", help="Only this process: a rank, or a name such as mpiexec or 'server 0'.")
@click.option("--attempt", metavar="K", type=click.IntRange(0), help="For a restarted job: the output of restart K.")
@click.option("--tail", metavar="N", type=click.IntRange(0), help="Of the existing output, show only the last N lines.")
@click.option("--stderr", "is_stderr", is_flag=True, help="Only what was written to standard error.")
@click.option("--raw", is_flag=True, help="Print what was written byte for byte, without [rank].")
@click.option("--timestamps", is_flag=True, help="Print the time (UTC) at which each line arrived on the head.")
@debug_option
@click.argument("job", required=False, shell_complete=complete.jobs)
def command(
    name: str | None,
    file: Path | None,
    wait: bool,
    rank: str | None,
    attempt: int | None,
    tail: int | None,
    is_stderr: bool,
    raw: bool,
    timestamps: bool,
    job: str | None,
) -> int:
    """Show the output of JOB (an id, the beginning of one, or a name; default: the newest job).

    It prints everything on standard output, in the order in which it arrived on the head, also what ranks wrote to
    standard error. Of a progress bar, it prints the last state. With -f it continues until the job ends, and exits
    with the job's exit code. For a restarted job it shows the current attempt; --attempt 0 shows the first. If the
    cluster is gone or the job was pruned, it shows what this machine has fetched.

    \b
    Examples:
      phalanx logs
      phalanx logs -f --tail 20
      phalanx logs 261121-0755 --rank 3
      phalanx logs --timestamps | grep -A 20 Traceback
      phalanx logs --rank 0 --raw > rank0.txt
    """
    if raw and timestamps:
        raise click.UsageError("--raw prints nothing but what was written: leave --timestamps out")
    stream, style = "stderr" if is_stderr else None, Style(merged=True, raw=raw, has_times=timestamps)
    try:
        cluster = load_cluster(name, file)
        found = open_job(cluster, job)
    except (ClusterError, JobError) as error:
        is_gone = isinstance(error, ClusterGone) or error.code in ("no-cluster", "job-removed")
        kept = kept_output.find(cluster_name(name, file), job) if is_gone and not wait else None
        if kept is None:
            raise
        gone = error.message if error.code == "job-removed" else "The cluster is gone"
        note(f"{gone}. This is {kept_output.origin(kept)}.")
        printer = Printer(style)
        for line in kept_output.lines_of(kept, rank, stream, tail):
            printer.show(line)
        return 0
    if attempt and attempt > (last := found.status().attempt):
        why = f"job {found.id} has no attempt {attempt}"
        raise JobError(why, f"It has {f'attempts 0 to {last}' if last else 'only attempt 0'}.", code="no-attempt")
    status = follow(
        found,
        wait=wait,
        process=rank,
        attempt=-1 if attempt is None else attempt,
        tail=tail,
        stream=stream,
        cluster=cluster.name,
        style=style,
    )
    if rank is not None:
        _require(rank, cluster, found)
    return status if wait else 0


def _require(rank: str, cluster: Cluster, job: Job) -> None:
    """Raise JobError if the job has no such process. Checked afterwards, since ranks are recorded as they start."""
    index = f"{job.directory}/output/processes"
    # Only a file, and only as much as a job's processes need: the job can put anything there.
    command = f"[ ! -f {shlex.quote(index)} ] || head -c {MOST_BYTES} {shlex.quote(index)}"
    lines = cluster.remote().run(command, timeout_s=20, check=False).stdout.splitlines()
    labels = {label for label in map(_label, lines) if label is not None}
    if rank not in labels:
        raise JobError(f"job {job.id} has no process '{rank}'", _listed(labels), code="no-process")


def _label(line: bytes) -> str | None:
    try:
        return output_process(parse(line))["label"]
    except Invalid:
        return None


def _by_number(label: str) -> tuple[str, int, str]:
    role, _, number = label.rpartition(" ")
    return (role, int(number), "") if number.isdigit() else (label, 0, "")


def _listed(labels: set[str]) -> str:
    ranks = sorted(int(label) for label in labels if label.isdigit())
    parts = [f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 2 else " and ".join(map(str, ranks))] if ranks else []
    parts += sorted((label for label in labels if not label.isdigit()), key=_by_number)
    return f"It has {', '.join(parts)}." if parts else "None of its processes has started."
