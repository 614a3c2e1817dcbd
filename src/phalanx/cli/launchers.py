"""phalanx launchers: list what can start a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from phalanx.cli.console import note, print_json, print_table
from phalanx.cli.options import cluster_option, debug_option, json_option, load_cluster
from phalanx.errors import PhalanxError
from phalanx.launchers import LAUNCHERS, load

_COLUMNS = ("LAUNCHER", "STARTS", "ENGINE ON THE HEAD", "RECIPES", "OPTIONS")
_WITHIN_S = 30.0
_YES_NO = {True: "yes", False: "no", None: "?"}


@click.command("launchers")
@cluster_option
@json_option
@debug_option
def command(name: str | None, file: Path | None, as_json: bool) -> None:
    """List the launchers of `phalanx run`: what each starts, and which recipes install its engine.

    Whether an engine is installed is checked on the head of the cluster, if there is one.

    \b
    Examples:
      phalanx launchers
      phalanx launchers --json | jq -r '.[] | select(.engine_on_head == false) | .recipes[0]'
    """
    programs = sorted({module.PROGRAM for module in map(load, LAUNCHERS)} - {""})
    found = _on_head(programs, name, file)
    rows = [_row(launcher, found) for launcher in LAUNCHERS]
    if as_json:
        print_json(rows)
        return
    print_table(_COLUMNS, [_cells(row) for row in rows])
    if found is None:
        note("No cluster answers, so the engines could not be checked.")


def _on_head(programs: list[str], name: str | None, file: Path | None) -> set[str] | None:
    """Return which of these programs are installed on the head; None if no cluster answers."""
    try:
        remote = load_cluster(name, file).remote()
        look = f"for program in {' '.join(programs)}; do command -v $program; done; true"
        lines = remote.run(look, timeout_s=_WITHIN_S).stdout.decode()
    except PhalanxError:
        if name or file:
            raise
        return None
    return {Path(line).name for line in lines.splitlines()}


def _row(launcher: str, found: set[str] | None) -> dict[str, Any]:
    module = load(launcher)
    is_installed = None if found is None or not module.PROGRAM else module.PROGRAM in found
    return {
        "launcher": launcher,
        "summary": module.SUMMARY,
        "engine": module.PROGRAM or None,
        "engine_on_head": is_installed,
        "recipes": list(module.RECIPES),
        "options": [f"--{option}" for option in module.OPTIONS],
    }


def _cells(row: dict[str, Any]) -> list[object]:
    engine = f"{row['engine']}: {_YES_NO[row['engine_on_head']]}" if row["engine"] else "-"
    return [row["launcher"], row["summary"], engine, *(" ".join(row[key]) or "-" for key in ("recipes", "options"))]
