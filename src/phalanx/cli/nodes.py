"""phalanx nodes: list the members of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx.cli.console import note, print_json, print_table
from phalanx.cli.options import cluster_option, debug_option, json_option, load_cluster
from phalanx.cli.status import outdated, read_state

if TYPE_CHECKING:
    from phalanx.node.roster import Node, Roster

COLUMNS = ("name", "instance_id", "address", "type", "zone", "slots", "gpus", "role", "state")
_BY_IMPORTANCE = ("NAME", "STATE", "ADDRESS", "SLOTS", "ROLE", "GPUS", "INSTANCE_ID", "TYPE", "ZONE")


@click.command("nodes")
@cluster_option
@json_option
@debug_option
def command(name: str | None, file: Path | None, as_json: bool) -> None:
    """List the nodes, including silent ones, and missing ones with the reason.

    \b
    Examples:
      phalanx nodes
      phalanx nodes --json | jq -r '.[].address'
    """
    cluster = load_cluster(name, file)
    _, roster = read_state(cluster)
    found = rows(roster, outdated(cluster, roster)) if roster else []
    if as_json:
        print_json(found)
    elif not found:
        note("No node has answered yet.")
    else:
        print_table([column.upper() for column in COLUMNS], [_cells(row) for row in found], _BY_IMPORTANCE)


def _cells(row: dict[str, Any]) -> list[object]:
    state = f"{row['state']} (outdated: launched with earlier settings)" if row["outdated"] else row["state"]
    return [({**row, "state": state})[column] for column in COLUMNS]


def rows(roster: Roster, old: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each node, silent and missing ones included; `old` names those with earlier settings."""
    leaving = {one.name: f"leaving: {one.reason}" for one in roster.leaving}
    present = [_row(node, leaving.get(node.name, "ready")) for node in roster.nodes]
    silent = [_row(node, "silent") for node in roster.silent]
    blank = dict.fromkeys(COLUMNS, "-")
    missing = [
        {**blank, "outdated": False, "name": m.name, "role": "worker", "state": f"missing: {m.reason}"}
        for m in roster.missing
    ]
    members = [{**row, "outdated": row["name"] in old} for row in present + silent]
    return members + missing


def _row(node: Node, state: str) -> dict[str, Any]:
    own = {column: getattr(node, column) for column in COLUMNS[:7]}
    return {**own, "role": "head" if node.head else "worker", "state": state}
