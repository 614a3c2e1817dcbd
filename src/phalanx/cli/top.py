"""phalanx top: the load of the nodes on which jobs run, again and again on a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import click

from phalanx.cli import complete
from phalanx.cli.console import note, print_json, print_table, say
from phalanx.cli.options import cluster_option, debug_option, json_option, load_cluster
from phalanx.cli.terminal import obeys
from phalanx.jobs.job import open_job
from phalanx.jobs.loads import GIB, NodeLoad, Seen, gpus_in_words, in_words, seen, total
from phalanx.runner import rank_progress

_EVERY_S = 2.0
# A sample is this old at most, while its node answers.
_OLD_S = 10.0
_HOME_AND_CLEAR = "\x1b[H\x1b[2J"
# The summary, the table's columns, what is left out, and the cursor.
_OTHER_LINES = 5
_BY_IMPORTANCE = (
    *("NODE", "CORES", "MEMORY", "GPUS", "STEP", "PEAK"),
    *("JOB", "NETWORK", "SHARED", "DISK", "PROCESSES", "AGE"),
)
_NONE = "No job runs, or none has been measured yet."


@click.command("top")
@cluster_option
@click.option("--once", is_flag=True, help="Show it once, on a terminal too.")
@json_option
@debug_option
@click.argument("job", required=False, shell_complete=complete.jobs)
def command(name: str | None, file: Path | None, once: bool, as_json: bool, job: str | None) -> int:
    """Show the load of the nodes on which jobs run, or only JOB.

    A terminal shows it again every 2 s until Ctrl-C. The nodes that do least come first. If there are more nodes
    than lines, those in the middle are left out. A pipe gets one table.

    CORES and MEMORY are what the job's processes use, and what the node has. PEAK is the most memory that the job
    has used there. NETWORK is received and sent per second; DISK and SHARED are read and written, on the node's disks
    and over NFS. STEP is that of the slowest rank there, with its steps per second, where `run --step` or lines
    `phalanx: step=12` in the output show it.

    \b
    Examples:
      phalanx top
      phalanx top --once
      phalanx top --json | jq '.[] | {node, cores, gpu_busy}'
    """
    cluster = load_cluster(name, file)
    job_id = open_job(cluster, job).id if job else ""
    if as_json:
        print_json(as_records(seen(cluster, job_id)))
    elif once or not obeys(sys.stdout):
        _show(seen(cluster, job_id), sys.maxsize)
    else:
        while True:
            found = seen(cluster, job_id)
            click.echo(_HOME_AND_CLEAR, nl=False)
            _show(found, shutil.get_terminal_size().lines - _OTHER_LINES)
            time.sleep(_EVERY_S)
    return 0


def as_record(one: NodeLoad) -> dict[str, object]:
    """Return a node's load for --json."""
    known = {"job": one.job, "node": one.node, "age_s": one.age_s, "peak_memory": one.peak_memory}
    return {**known, **one.load._asdict()}


def as_records(found: Seen) -> list[dict[str, object]]:
    """Return the load of each node for --json, with how far the ranks on it are."""
    return [
        {**as_record(one), "ranks": [_as_record(rank) for rank in found.ranks[one.job] if rank.node == one.node]}
        for one in found.loads
    ]


def _as_record(one: rank_progress.RankProgress) -> dict[str, object]:
    return {"rank": one.rank, "age_s": one.age_s, **one.progress._asdict()}


def _show(found: Seen, most: int) -> None:
    loads = found.loads
    if not loads:
        note(_NONE)
        return
    nodes = len({one.node for one in loads})
    say(f"{nodes} node{'s' * (nodes != 1)}: {in_words(total(loads))}")
    for job, ranks in found.ranks.items():
        if words := "; ".join(filter(None, (rank_progress.in_words(ranks), rank_progress.values_in_words(ranks)))):
            say(f"job {job}: {words}")
    ordered = sorted(loads, key=lambda one: (one.load.gpu_busy, one.load.cores))
    shown = ordered if len(ordered) <= most else ordered[: most - most // 2] + ordered[len(ordered) - most // 2 :]
    if len(shown) < len(ordered):
        say(f"the {most - most // 2} that do least, and the {most // 2} that do most, of {len(ordered)}:")
    rows = [row(one) for one in shown]
    print_table(list(rows[0]), [list(one.values()) for one in rows], _BY_IMPORTANCE)


def row(one: NodeLoad) -> dict[str, str]:
    """Return the cells of a node by their columns."""
    load = one.load
    return {
        "NODE": one.node,
        "JOB": one.job,
        "CORES": f"{load.cores:.1f}/{load.node_cores_total:.0f}",
        "MEMORY": f"{load.memory / GIB:.1f}/{load.node_memory_total / GIB:.1f} GiB",
        "PEAK": f"{one.peak_memory / GIB:.1f} GiB",
        "NETWORK": f"{_rate(load.received)} {_rate(load.sent)}",
        "DISK": f"{_rate(load.read)} {_rate(load.written)}",
        "SHARED": f"{_rate(load.shared_read)} {_rate(load.shared_written)}",
        "PROCESSES": f"{load.processes:.0f}",
        "GPUS": gpus_in_words(load) or "-",
        "STEP": f"{load.step:.0f} {load.step_rate:.3g}/s" if load.step else "-",
        "AGE": f"{one.age_s:.0f} s" if one.age_s > _OLD_S else "-",
    }


def _rate(value: float) -> str:
    return f"{value / 1e6:.0f}M" if value >= 1e6 else f"{value / 1e3:.0f}k"
