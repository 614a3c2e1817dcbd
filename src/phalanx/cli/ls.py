"""phalanx ls: list all clusters that this machine knows."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from phalanx import connection
from phalanx.cli import cost_text
from phalanx.cli.console import duration, note, print_json, print_table
from phalanx.cli.options import debug_option, json_option
from phalanx.cli.status import cost, time_left
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.diagnosis import find_stack
from phalanx.errors import PhalanxError
from phalanx.state_files import known

COLUMNS = ("cluster", "cloud", "region", "state", "age", "lease", "removal", "cost", "nodes", "address", "costs now")


STOPPED = "stopped"
_UNKNOWN: dict[str, Any] = {"lease_left_s": None, "removal_left_s": None, "cost_usd": None, "cost": None}


@click.command("ls")
@json_option
@debug_option
def command(as_json: bool) -> None:
    """List the clusters that this machine knows, on any cloud and in any region, with their current state.

    \b
    Examples:
      phalanx ls
      phalanx ls --json | jq -r '.[] | select(.cloud == "aws") | .cluster'
    """
    names = known()
    with ThreadPoolExecutor(max_workers=8) as pool:
        rows = list(pool.map(row, names))
    if as_json:
        print_json(rows)
    elif not rows:
        note("This machine knows no cluster. Run `phalanx init`, then `phalanx up`.")
    else:
        print_table([column.upper() for column in COLUMNS], [_cells(one) for one in rows])


def row(name: str) -> dict[str, Any]:
    """Return what is known of a cluster; its state says why no more is."""
    try:
        cluster = connection.attached(Cluster.load(name))
    except PhalanxError as error:
        unknown = {"state": f"unknown: {error.message}", "age_s": None}
        return {**dict.fromkeys(COLUMNS[1:-1]), **_UNKNOWN, "cluster": name, **unknown}
    found = _find(cluster)
    return {
        "cluster": name,
        "cloud": cluster.cloud,
        "region": cluster.region,
        **found,
        "age_s": round(time.time() - cluster.created_s) if cluster.created_s else None,
        "nodes": 0 if found["state"] == STOPPED else cluster.nodes or None,
        "address": cluster.head_address or None,
    }


def _find(cluster: Cluster) -> dict[str, Any]:
    """Return the stack's status, the rest of the lease, and the cost so far and now.

    The status is the reason if it is unknown, so that the other clusters are still shown.
    """
    try:
        found = find_stack(cluster)
        if found is None:
            return {**_UNKNOWN, "state": "gone" if cluster.stack_id else "never created"}
        left = time_left(cluster, found)
        state = STOPPED if left["stopped"] else found.status
        costs = cost(cluster, found)["cost"]
    except PhalanxError as error:
        return {**_UNKNOWN, "state": f"unknown: {error.message}"}
    times = {name: left[name] for name in ("lease_left_s", "removal_left_s")}
    return {"state": state, **times, "cost_usd": costs["so_far_usd"], "cost": costs}


def _cells(row: dict[str, Any]) -> list[object]:
    times = {"age": row["age_s"], "lease": row["lease_left_s"], "removal": row["removal_left_s"]}
    shown = {name: None if seconds is None else duration(seconds) for name, seconds in times.items()}
    shown["cost"] = None if row["cost_usd"] is None else f"${row['cost_usd']:.2f}"
    costs, stopped = row["cost"], row["state"] == STOPPED
    shown["costs now"] = cost_text.now(row["cloud"], costs, stopped) if costs else None
    return [value if value is not None else "-" for value in ({**row, **shown}[column] for column in COLUMNS)]
