"""phalanx plan: show what `up` would create."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx.cli.console import print_json, print_table, say
from phalanx.cli.options import debug_option, file_option, json_option
from phalanx.cli.planning import offline_option, planned, unsuited_recipes, unsuited_text
from phalanx.errors import PhalanxError

if TYPE_CHECKING:
    from phalanx.plan.plan import Plan


@click.command("plan")
@file_option
@json_option
@offline_option
@click.option("--egress", is_flag=True, help="Show every host and port that nodes contact, in place of the plan.")
@debug_option
def command(file: Path, as_json: bool, offline: bool, egress: bool) -> None:
    """Show what `up` would create: machines, zone, image, hourly cost, warnings. Changes nothing.

    \b
    Examples:
      phalanx plan
      phalanx plan -f big.yaml --json
      phalanx plan --offline            # asks nothing, as happens without credentials or a connection
      phalanx plan --egress             # for a network that lets nothing else out
    """
    from phalanx.plan import plan_text
    from phalanx.spec.spec_load import with_location
    from phalanx.template import request

    plan = planned(file, offline)
    if egress:
        _show_egress(plan, as_json)
        return
    with with_location(file):
        request(plan)
    asked = not (offline or plan.facts.not_asked)
    requested = _requested_nodes(plan) if asked else None
    recipes = unsuited_recipes(plan)
    if as_json:
        print_json({**plan_text.as_dict(plan), "unsuited_recipes": recipes, "requested": requested})
    else:
        say("\n".join(plan_text.explain(plan)))
        if recipes:
            say(unsuited_text(recipes))
        if requested not in (None, plan.spec.nodes):
            say(
                f"Cluster {plan.spec.name} is up already; `phalanx scale` requested {requested} nodes, "
                "which `up` keeps."
            )


def _show_egress(plan: Plan, as_json: bool) -> None:
    from phalanx.clouds import domains
    from phalanx.template import egress

    found = egress.of(plan, domains.of(plan.spec.region))
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        rows = [(one.host, one.port, one.what, one.needed_for) for one in found]
        print_table(("HOST", "PORT", "WHAT", "NEEDED FOR"), rows)


def _requested_nodes(plan: Plan) -> int | None:
    """Return the requested number of nodes of the cluster with this name; None if it is not up or can't be reached."""
    from phalanx.cli.status import read_state
    from phalanx.cluster.cluster_record import Cluster

    try:
        cluster = Cluster.load(plan.spec.name)
        roster = read_state(cluster)[1] if cluster.ready else None
    except PhalanxError:
        return None
    return roster.requested if roster else None
