"""phalanx extend: move the end of a cluster's lease."""

from __future__ import annotations

import time
from pathlib import Path

import click

from phalanx import clouds
from phalanx.cli.console import duration, print_json, say
from phalanx.cli.options import cluster_option, debug_option, json_option, load_cluster
from phalanx.errors import ClusterError
from phalanx.spec.spec_checks import WrongError, duration_s


def _seconds(_: click.Context, __: click.Parameter, value: str) -> int:
    try:
        seconds = duration_s(value)
    except WrongError as error:
        raise click.BadParameter(str(error)) from None
    if not seconds:
        raise click.BadParameter("must be longer than nothing")
    return seconds


@click.command("extend")
@click.argument("by", metavar="[TIME]", default="2h", callback=_seconds)
@cluster_option
@json_option
@debug_option
def command(by: int, name: str | None, file: Path | None, as_json: bool) -> None:
    """Move the end of the lease by TIME (default: 2h), counted from the present end.

    A cluster without a lease gets one, counted from now. `phalanx up` starts a cluster whose lease has ended.

    \b
    Examples:
      phalanx extend
      phalanx extend 8h
    """
    from phalanx.clouds.diagnosis import require_stack

    cluster = load_cluster(name, file)
    require_stack(cluster)
    cloud = clouds.get(cluster.cloud, cluster.region)
    running = cloud.running(cluster.name)
    if running is None or running.stopped:
        raise ClusterError(f"cluster {cluster.name} has no nodes", "`phalanx up` starts them, with a new lease.")
    now = time.time()
    end_s = max(now, running.end_s or 0.0) + by
    cloud.end_at(cluster.name, end_s)
    if as_json:
        print_json({"cluster": cluster.name, "lease_end": moment(end_s), "left_s": round(end_s - now)})
    else:
        say(f"The lease of cluster {cluster.name} ends in {duration(end_s - now)}, at {moment(end_s)}.")


def moment(at_s: float) -> str:
    """Return a time as it is shown to people: 2026-11-22 18:00 UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at_s))
