"""phalanx reap: find what is left of clusters whose stack is gone."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from phalanx import connection
from phalanx.aws.inventory import orphans
from phalanx.cli.console import note, print_json, say
from phalanx.cli.options import debug_option, json_option, region_option
from phalanx.errors import CloudError
from phalanx.spec.cloud_names import CLOUDS

if TYPE_CHECKING:
    from phalanx.aws.inventory.orphans import Orphans

LEFT = 1


@click.command("reap")
@click.option("--cloud", type=click.Choice(sorted(CLOUDS)), default="aws", show_default=True, help="The cloud.")
@region_option
@json_option
@debug_option
def command(cloud: str, region: str, as_json: bool) -> int:
    """Find what phalanx's clusters have left in a region: resources without a stack, and stacks that failed.

    AWS's index of tags names the clusters, and each service confirms what is left. The index may lack what was made
    in the last minutes, except machines and Auto Scaling groups. Without the right tag:GetResources, each service
    lists its own resources. Nothing is deleted. Data that `down` kept does not count.

    The exit code is 1 if something was found. It is 3 if a service did not answer, so that more may be left.

    \b
    Examples:
      phalanx reap --region eu-central-1
      phalanx reap --json | jq -r '.[].cluster'
    """
    at = connection.connect(cloud, region)
    unanswered: list[CloudError] = []
    found = [] if at.site.is_off() else orphans.find(at, unanswered.append)
    if as_json:
        print_json([asdict(one) for one in found])
    elif not found and not unanswered:
        say(f"Nothing is left of any cluster in {region} ({cloud}).")
    else:
        say("\n".join(line for one in found for line in _text(one)))
    for error in {one.message: one for one in unanswered}.values():
        note(f"warning: not everything was looked at: {error.message}")
    if unanswered:
        return CloudError.exit_code
    return LEFT if found else 0


def _text(left: Orphans) -> list[str]:
    state = "it has no stack"
    if left.stack:
        state = f"its stack is {left.stack}, and `phalanx down -c {left.cluster}` deletes it"
    return [f"Of cluster {left.cluster} is left ({state}):", *(f"  {line}" for line in left.lines)]
