"""phalanx scale: another number of nodes for a cluster that runs."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx.cli.console import duration, note, print_json, say
from phalanx.cli.options import cluster_option, debug_option, load_cluster
from phalanx.errors import ClusterError

if TYPE_CHECKING:
    from phalanx.clouds.scaling import Scaling

_DEADLINE_S = 15 * 60.0


@click.command("scale")
@click.argument("nodes", type=click.IntRange(1, 1000))
@cluster_option
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@click.option("--force", is_flag=True, help="Take nodes away from running jobs, too; those jobs end.")
@click.option("--json", "as_json", is_flag=True, help="Print the final state as JSON.")
@debug_option
def command(nodes: int, name: str | None, file: Path | None, yes: bool, force: bool, as_json: bool) -> int:
    """Grow or shrink the cluster to NODES machines, the head included, and wait until they are members.

    Those with the highest numbers go first. phalanx.yaml keeps its number; `phalanx status` tells when they differ.

    \b
    Examples:
      phalanx scale 8
      phalanx scale 2 --yes
    """
    from phalanx.clouds.scaling import Scaling

    started_s = time.monotonic()
    scaling = Scaling(load_cluster(name, file), nodes)
    _check(scaling, yes, force)
    scaling.ask()
    for roster in scaling.follow(_DEADLINE_S):
        note(f"generation {roster.generation}: {len(roster.nodes)} of {roster.requested} nodes")
    replace(scaling.cluster, nodes=len(scaling.roster.nodes), control=None).save()
    return _report(scaling, time.monotonic() - started_s, as_json)


def _check(scaling: Scaling, yes: bool, force: bool) -> None:
    """Ask before machines come or go; refuse to take nodes from jobs."""
    jobs = [] if force else scaling.jobs_in_the_way()
    if jobs:
        names = ", ".join(node.name for node in scaling.going())
        raise ClusterError(
            f"{' and '.join(jobs)} would lose {names}", "Wait for the end, `phalanx stop` the job, or say --force."
        )
    if not yes and sys.stdin.isatty():
        before, name = scaling.roster.requested, scaling.cluster.name
        click.confirm(f"Scale cluster {name} from {before} to {scaling.nodes} nodes?", abort=True, err=True)


def _report(scaling: Scaling, took_s: float, as_json: bool) -> int:
    roster = scaling.roster
    if as_json:
        from phalanx.cli.status import describe

        print_json({**describe(scaling.cluster, "CREATE_COMPLETE", roster), "took_s": round(took_s, 3)})
        return 0
    say(f"Cluster {scaling.cluster.name} has {len(roster.nodes)} of {roster.requested} nodes after {duration(took_s)}.")
    for missing in roster.missing:
        say(f"  missing  {missing.name}: {missing.reason}")
    return 0
