"""phalanx status: show the current state of the cluster."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx.cli import cost_text
from phalanx.cli.console import duration, moment, print_json, say
from phalanx.cli.options import cluster_option, debug_option, json_option, load_cluster
from phalanx.cli.terminal import beneath
from phalanx.cluster import spending
from phalanx.cluster.diagnosis import require_stack
from phalanx.cluster.stack import Lacking, read_lacking, read_roster
from phalanx.counts import counted
from phalanx.errors import PhalanxError
from phalanx.jobs import toolbox
from phalanx.jobs.job import JobState, list_jobs
from phalanx.jobs.loads import Seen, in_words, seen, total
from phalanx.plan.plan import known_sizes
from phalanx.runner import rank_progress

if TYPE_CHECKING:
    from phalanx.aws.model import StackState
    from phalanx.cluster.cluster_record import Cluster
    from phalanx.node.roster import Missing, Node, Roster

_SILENT = "no sign of life for 15 s; it is a member again as soon as it is heard, and is replaced after 120 s"


@click.command("status")
@cluster_option
@json_option
@debug_option
def command(name: str | None, file: Path | None, as_json: bool) -> None:
    """Show the state of the cluster: its stack, nodes, silent and missing nodes with the reason, head and jobs.

    \b
    Examples:
      phalanx status
      phalanx status -c demo --json
    """
    cluster = load_cluster(name, file)
    state, roster = read_state(cluster)
    left = time_left(cluster, state)
    facts = describe(cluster, state.status, None if left["stopped"] else roster) | left
    answers = cluster.ready and not facts["stopped"]
    facts["outdated"] = outdated(cluster, roster) if answers and roster else []
    facts["full_disks"], facts["shared_silent"] = read_lacking(cluster.aws(), cluster.table) if answers else Lacking()
    facts.update(cost(cluster, state))
    facts["load"] = ""
    facts.update(_ask_head(cluster) if answers else {"jobs_running": None, "jobs_damaged": None})
    facts["open_networks"] = cluster.aws().site.open_networks()
    facts["age_s"] = round(time.time() - state.created_s)
    if as_json:
        print_json(facts)
    else:
        _print(facts)


def outdated(cluster: Cluster, roster: Roster) -> list[str]:
    """Return the names of the nodes that were launched with settings from before the stack's last change."""
    found = cluster.aws().machines.outdated(cluster.name)
    return [node.name for node in (*roster.nodes, *roster.silent) if node.instance_id in found]


def time_left(cluster: Cluster, state: StackState) -> dict[str, Any]:
    """Return whether the cluster has stopped its nodes, and when its lease ends or its stack is removed."""
    running = cluster.aws().machines.running(cluster.name)
    end_s = running.end_s if running else None
    due_s = spending.removed_at_s(state, running)
    return {
        "stopped": running is not None and running.stopped,
        "ended": running.ended if running else "",
        "lease_left_s": None if end_s is None else max(0, round(end_s - time.time())),
        "removal_left_s": None if due_s is None else max(0, round(due_s - time.time())),
    }


def cost(cluster: Cluster, state: StackState) -> dict[str, Any]:
    """Return the cost so far and now, in dollars; None where a price is not known."""
    return {"cost": asdict(spending.cost(cluster.aws(), state, cluster.spec.get("head")))}


def read_state(cluster: Cluster) -> tuple[StackState, Roster | None]:
    """Read the stack's state and the roster from the cloud's API. Raises ClusterError if the cluster is gone."""
    state = require_stack(cluster)
    cloud = cluster.aws()
    return state, read_roster(cloud, cluster.table) if cluster.table else None


def describe(cluster: Cluster, status: str, roster: Roster | None) -> dict[str, Any]:
    """Return the cluster's state as it is printed as JSON."""
    nodes = _listed(roster.nodes) if roster else []
    silent = _listed(roster.silent) if roster else []
    missing = _with_reasons(roster.missing) if roster else []
    return {
        "cluster": cluster.name,
        "cloud": cluster.cloud,
        "region": cluster.region,
        "state": status,
        "requested": roster.requested if roster else None,
        "spec_nodes": cluster.spec.get("nodes"),
        "gpus_of_type": (known_sizes(cluster.spec.get("type", "")) or {}).get("gpus", 0),
        "gpus_per_node": max((n.gpus for n in roster.nodes), default=0) if roster else None,
        "nodes": nodes,
        "silent": silent,
        "missing": missing,
        "leaving": _with_reasons(roster.leaving) if roster else [],
        "head_address": cluster.head_address,
        "shared": cluster.shared,
        "shared_closed": "",
        "accounts_separated": cluster.accounts_separated,
        "stack_id": cluster.stack_id,
    }


def _listed(nodes: Iterable[Node]) -> list[dict[str, str]]:
    return [{"name": node.name, "instance_id": node.instance_id, "address": node.address} for node in nodes]


def _with_reasons(nodes: Iterable[Missing]) -> list[dict[str, str]]:
    return [{"name": one.name, "reason": one.reason} for one in nodes]


def absent(roster: Roster) -> list[tuple[str, str]]:
    """Return the nodes that no job can use, each as ("silent" or "missing", its name with the reason)."""
    silent = [("silent", f"{node.name}: {_SILENT}") for node in roster.silent]
    return silent + [("missing", f"{missing.name}: {beneath(missing.reason)}") for missing in roster.missing]


def _ask_head(cluster: Cluster) -> dict[str, int | str | None]:
    """Count the running jobs, and look whether they can write at the top of the shared directory.

    If the head does not answer, return the reason, so that the rest is still shown.
    """
    try:
        states = [job.state for job in list_jobs(cluster)]
        closed = toolbox.closed(cluster.remote(), cluster.shared)
    except PhalanxError as error:
        return {"jobs_running": f"unknown: {error.message}", "jobs_damaged": None}
    return {
        "jobs_running": sum(not state.final for state in states),
        "jobs_damaged": states.count(JobState.DAMAGED),
        "load": _in_words(_seen(cluster, states)),
        "shared_closed": closed,
    }


def _seen(cluster: Cluster, states: list[JobState]) -> Seen:
    """Return the load of the nodes with jobs, and how far these are; nothing where it is not known."""
    if all(state is not JobState.RUNNING for state in states):
        return Seen([], {})
    try:
        return seen(cluster)
    except PhalanxError:
        return Seen([], {})  # what else is known is still shown


def _in_words(found: Seen) -> str:
    steps = [words for ranks in found.ranks.values() if (words := rank_progress.in_words(ranks))]
    return "; ".join([*([in_words(total(found.loads))] if found.loads else []), *steps])


def _print(facts: dict[str, Any]) -> None:
    say(f"cluster   {facts['cluster']} ({facts['cloud']}, {facts['region']})")
    say(f"state     {facts['state']}")
    say(f"nodes     {_nodes(facts)}")
    if None not in (facts["requested"], facts["spec_nodes"]) and facts["requested"] != facts["spec_nodes"]:
        say(f"scaled    {counted(facts['requested'], 'node')} requested now; phalanx.yaml had {facts['spec_nodes']}")
    for node in facts["silent"]:
        say(f"silent    {node['name']}: {_SILENT}")
    for missing in facts["missing"]:
        say(f"missing   {missing['name']}: {beneath(missing['reason'])}")
    for leaving in facts["leaving"]:
        say(f"leaving   {leaving['name']}: {beneath(leaving['reason'])}")
    if facts["outdated"]:
        names = ", ".join(facts["outdated"])
        say(f"outdated  {names}: launched with earlier settings, which a machine keeps until it is replaced")
    if facts["full_disks"]:
        say(f"disks     {', '.join(facts['full_disks'])}: full; `phalanx why` shows how to make room")
    if gpus := _gpus(facts["gpus_per_node"], facts["gpus_of_type"]):
        say(f"gpus      {gpus}")
    say(f"head      {facts['head_address'] or 'not yet known'}")
    say(f"shared    {facts['shared'] or 'not yet known'}")
    if facts["shared_silent"]:
        say(f"          it does not answer on {', '.join(facts['shared_silent'])}; `phalanx why` shows what to do")
    if facts["shared_closed"]:
        say(f"          it {facts['shared_closed']}, so jobs can't write at its top, only in .phalanx:")
        say(f"          {toolbox.how_to_open(facts['shared'])}")
    if not facts["accounts_separated"]:
        say("accounts  jobs run as root on these nodes, unlike on AWS; `phalanx local status` shows why")
    for line in facts["open_networks"].splitlines():
        say(f"note      {line}")
    say(f"jobs      {_jobs(facts['jobs_running'], facts['jobs_damaged'])}")
    if facts.get("load"):
        say(f"load      {facts['load']}")
    if facts["lease_left_s"] is not None:
        say(f"lease     ends in {duration(facts['lease_left_s'])}: then all nodes stop; `phalanx extend` moves it")
    elif facts["nodes"] and not facts["stopped"]:
        say("lease     none; `phalanx extend` begins one")
    if facts["removal_left_s"] is not None:
        left_s = facts["removal_left_s"]
        when = f"{duration(left_s)}, at {moment(time.time() + left_s)}"
        say(f"removal   in {when}: then the stack is deleted, and data in EFS stay;")
        say("          `phalanx extend` moves that, `phalanx up` starts the nodes")
    say(f"cost      {cost_text.whole(facts['cloud'], facts['cost'], facts['stopped'])}")
    say(f"age       {duration(facts['age_s'])}")


def _nodes(facts: dict[str, Any]) -> str:
    if facts["ended"]:
        return f"none: {facts['ended']}; `phalanx down` can keep the data"
    if facts["stopped"]:
        return "none: they are stopped (lease, budget, or unused); `phalanx up` starts them again"
    return f"{len(facts['nodes'])} ready of {facts['requested'] if facts['requested'] is not None else '?'}"


def _gpus(per_node: int | None, of_type: int) -> str:
    if of_type and per_node == 0:
        return f"none; the type has {of_type} on AWS, and `phalanx local gpus {of_type}` gives new nodes stand-ins"
    return f"{per_node} on a node" if per_node else ""


def _jobs(running: int | str | None, damaged: int | None) -> str:
    if isinstance(running, str):
        return running
    beside = f", {damaged} with a record that can't be read" if damaged else ""
    return f"{'-' if running is None else running} running{beside}"
