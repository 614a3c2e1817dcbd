"""phalanx scale: change the number of nodes of a running cluster."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from phalanx.cli.console import confirm, duration, note, print_json, require_terminal, say
from phalanx.cli.options import cluster_option, debug_option, json_option, load_cluster, yes_option
from phalanx.cli.status import absent, describe
from phalanx.cluster.scaling import Scaling
from phalanx.counts import counted


@click.command("scale")
@click.argument("nodes", type=click.IntRange(1, 1000))
@cluster_option
@yes_option
@click.option("--force", is_flag=True, help="Do it even if something is lost. Here: jobs on nodes that go.")
@json_option
@debug_option
def command(nodes: int, name: str | None, file: Path | None, yes: bool, force: bool, as_json: bool) -> int:
    """Grow or shrink the cluster to NODES machines, the head included, and wait until they are members.

    The nodes with the highest numbers leave first. phalanx.yaml keeps its number; `phalanx status` shows a difference.
    To shrink a cluster without a terminal, --yes is required.

    \b
    Examples:
      phalanx scale 8
      phalanx scale 2 --yes
    """
    started_s = time.monotonic()
    scaling = Scaling(load_cluster(name, file), nodes)
    _check(scaling, yes, force)
    resize(scaling)
    return _report(scaling, time.monotonic() - started_s, as_json)


def resize(scaling: Scaling) -> None:
    """Change the number of nodes, and wait until they are members."""
    for text in scaling.steps():
        note(text)


def _check(scaling: Scaling, yes: bool, force: bool) -> None:
    """Refuse to remove nodes that jobs use, unless forced; confirm a change on a terminal."""
    is_smaller = scaling.nodes < scaling.roster.requested
    if is_smaller and not yes:
        require_terminal()
    jobs = [] if force and yes else scaling.jobs_in_the_way()
    if not force:
        scaling.refuse_to_take_nodes(jobs)
    if not yes and sys.stdin.isatty():
        confirm(_question(scaling, jobs))


def _question(scaling: Scaling, jobs: list[str]) -> str:
    cluster, before = scaling.cluster, scaling.roster.requested
    least = cluster.spec["min"]
    sentences = [f"Scale cluster {cluster.name} from {before} to {counted(scaling.nodes, 'node')}?"]
    sentences += [f"That is fewer than `min: {least}` in phalanx.yaml."] * (scaling.nodes < least)
    sentences += [f"Job {job} ends." for job in jobs]
    return " ".join(sentences)


def _report(scaling: Scaling, took_s: float, as_json: bool) -> int:
    roster = scaling.roster
    if as_json:
        print_json({**describe(scaling.cluster, "CREATE_COMPLETE", roster), "took_s": round(took_s, 3)})
        return 0
    nodes = f"{len(roster.nodes)} of {counted(roster.requested, 'node')}"
    say(f"Cluster {scaling.cluster.name} has {nodes} after {duration(took_s)}.")
    for what, which in absent(roster):
        say(f"  {what:<7}  {which}")
    return 0
