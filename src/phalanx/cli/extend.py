"""phalanx extend: move the end of a cluster's lease."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx.cli.console import confirm, duration, moment, note, print_json, require_terminal, say
from phalanx.cli.options import cluster_option, debug_option, json_option, load_cluster, yes_option
from phalanx.cluster import spending
from phalanx.cluster.diagnosis import require_stack
from phalanx.cluster.spending import budget_pays_until
from phalanx.counts import counted
from phalanx.errors import CloudError, ClusterError
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_checks import WrongError, duration_s

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws
    from phalanx.aws.model import StackState
    from phalanx.cluster.cluster_record import Cluster


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
@yes_option
@json_option
@debug_option
def command(by: int, name: str | None, file: Path | None, yes: bool, as_json: bool) -> None:
    """Move the end of the lease by TIME (default: 2h), counted from the present end.

    A cluster without a lease runs until `phalanx down`. It gets one, counted from now, if you confirm that.
    `phalanx up` starts a cluster whose lease has ended. For a stopped cluster, `extend` moves the time at which
    `down_after` deletes it. It warns if a `budget` does not pay until the new end.

    \b
    Examples:
      phalanx extend
      phalanx extend 8h
    """
    cluster = load_cluster(name, file)
    state = require_stack(cluster)
    cloud = cluster.aws()
    running, now = cloud.machines.running(cluster.name), time.time()
    if running is None or running.stopped:
        due_s = spending.removed_at_s(state, running)
        if due_s is None:
            raise ClusterError(
                f"cluster {cluster.name} has no nodes", "`phalanx up` starts them, with a new lease.", code="no-nodes"
            )
        cloud.machines.keep_until(cluster.name, due_s := max(now, due_s) + by)
        _report(cluster.name, "removal", f"The stack of stopped cluster {cluster.name} is deleted", due_s, as_json)
        return
    if running.end_s is None and not yes:
        require_terminal()
        confirm(f"Cluster {cluster.name} has no lease and runs until `phalanx down`. Stop its nodes in {duration(by)}?")
    end_s = max(now, running.end_s or 0.0) + by
    cloud.machines.end_at(cluster.name, end_s)
    paid_s, warning = _budget(cloud, state, cluster, running.nodes, end_s)
    if warning:
        note(f"warning: {warning}")
    pays_until = {"budget_pays_until": None if paid_s is None else moment(paid_s)}
    _report(cluster.name, "lease_end", f"The lease of cluster {cluster.name} ends", end_s, as_json, pays_until)


def _budget(
    cloud: Aws, state: StackState, cluster: Cluster, nodes: int, end_s: float
) -> tuple[float | None, str | None]:
    """Return until when the budget pays the nodes, if that is known, and a warning if they run for longer."""
    budget = cluster.spec.get("budget")
    if not budget:
        return None, None
    try:
        paid_s = budget_pays_until(cloud, state, ClusterSpec(**cluster.spec), nodes)
    except CloudError as error:
        return None, f"whether the budget of {budget} pays until then is not known: {error.message}"
    if paid_s is None or paid_s >= end_s:
        return paid_s, None
    if paid_s <= time.time():
        return paid_s, f"the budget of {budget} is spent, and the nodes go on until the lease ends"
    pays = f"the budget of {budget} pays {counted(nodes, 'node')} until {moment(paid_s)}"
    return paid_s, f"{pays}: nothing stops them then, because the lease ends later"


def _report(
    name: str, what: str, text: str, at_s: float, as_json: bool, more: Mapping[str, str | None] | None = None
) -> None:
    left_s = at_s - time.time()
    if as_json:
        print_json({"cluster": name, what: moment(at_s), "left_s": round(left_s), **(more or {})})
    else:
        say(f"{text} in {duration(left_s)}, at {moment(at_s)}.")
