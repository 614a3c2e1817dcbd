"""phalanx plan: what `up` would make."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli.console import print_json, say
from phalanx.cli.options import debug_option, file_option, json_option
from phalanx.cli.planning import planned


@click.command("plan")
@file_option
@json_option
@debug_option
def command(file: Path, as_json: bool) -> None:
    """Show what `up` would make: machines, zone, image, cost an hour, warnings. Changes nothing.

    \b
    Examples:
      phalanx plan
      phalanx plan -f big.yaml --json
    """
    plan = planned(file)
    if as_json:
        print_json(plan.as_dict())
    else:
        say("\n".join(plan.lines()))
