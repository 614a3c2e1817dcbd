"""phalanx plan: what `up` would make."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli.console import print_json, say
from phalanx.cli.options import debug_option, file_option, json_option
from phalanx.cli.planning import large_template, offline_option, planned


@click.command("plan")
@file_option
@json_option
@offline_option
@debug_option
def command(file: Path, as_json: bool, offline: bool) -> None:
    """Show what `up` would make: machines, zone, image, cost an hour, warnings. Changes nothing.

    \b
    Examples:
      phalanx plan
      phalanx plan -f big.yaml --json
      phalanx plan --offline            # without an AWS account
    """
    from phalanx.plan import plan_text

    plan = planned(file, offline)
    large = large_template(file, plan, offline) if plan.spec.boot else None
    if as_json:
        print_json({**plan_text.as_dict(plan), "large_template": large})
    else:
        say("\n".join(plan_text.explain(plan)))
        if large:
            say(f"The template: {large}.")
