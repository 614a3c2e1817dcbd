"""phalanx adopt: take over a cluster that this machine did not create."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx import clouds
from phalanx.cli.console import say
from phalanx.cli.options import debug_option


@click.command("adopt")
@click.argument("name")
@click.option("--cloud", type=click.Choice(sorted(clouds.MODULES)), default="aws", show_default=True, help="Its cloud.")
@click.option("--region", default="us-east-1", show_default=True, help="Its region.")
@click.option(
    "-i",
    "--identity",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The private key to the stack's SshPublicKey; default: the one in ~/.ssh that fits.",
)
@debug_option
def command(name: str, cloud: str, region: str, identity: Path | None) -> None:
    """Take over a cluster that another machine created, or somebody in CloudFormation's console.

    Afterwards `status`, `run`, `ssh`, `down` and all other commands work here. A copy of the private key is stored with
    the cluster's record.

    \b
    Examples:
      phalanx adopt demo --region eu-central-1
      phalanx adopt demo -i ~/.ssh/cluster_key
    """
    from phalanx.cluster.adopt import adopt

    cluster, roster = adopt(clouds.get(cloud, region), name, identity)
    say(f"Cluster {cluster.name} is known here now: {len(roster.nodes)} of {roster.requested} nodes.")
    say("Next: `phalanx status`, `phalanx run -- python train.py`, `phalanx ssh`, `phalanx down`.")
