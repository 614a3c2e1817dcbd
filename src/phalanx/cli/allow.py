"""phalanx allow: let another network reach the head by ssh."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.aws import own_address
from phalanx.cli.console import say
from phalanx.cli.options import cluster_option, debug_option, load_cluster
from phalanx.cluster import ssh_access
from phalanx.cluster.ssh_access import allowed, head_group
from phalanx.errors import SpecError
from phalanx.spec import spec_checks as checks
from phalanx.spec.spec_checks import EVERYWHERE
from phalanx.spec.spec_network import are_the_internet


@click.command("allow")
@click.argument("network", default="auto")
@cluster_option
@debug_option
def command(network: str, name: str | None, file: Path | None) -> None:
    """Let NETWORK reach the head by ssh; without it, the public address that this machine has now.

    It adds a rule to the head's security group, with your own rights in AWS. The rule ends with the cluster.

    \b
    Examples:
      phalanx allow                     # after a move to another network
      phalanx allow 203.0.113.0/24
    """
    cluster = load_cluster(name, file)
    cloud = cluster.aws()
    group = head_group(cloud, cluster)
    source = _source(network, cluster.cloud)
    _refuse_the_internet(source, allowed(cloud, group))
    added = ssh_access.allow_network(cloud, group, source)
    say(f"{source} may {'now' if added else 'already'} reach the head of {cluster.name} by ssh.")


def _refuse_the_internet(source: str, before: list[str]) -> None:
    """Raise SpecError if the network makes the rules the whole internet, and does not say so."""
    if source != EVERYWHERE and are_the_internet([*before, source]) and not are_the_internet(before):
        raise SpecError(
            f"NETWORK: {source} beside {', '.join(before)}, which may already, opens ssh to the whole internet",
            "Run `phalanx allow anywhere` if that is what you want.",
            code="open-to-all",
        )


def _source(network: str, cloud: str) -> str:
    """Return the network in CIDR notation. Raises SpecError."""
    try:
        checked = checks.network(network)
    except checks.WrongError as error:
        raise SpecError(f"NETWORK: {error.what}", error.hint, code=error.code) from None
    if checked == checks.AUTO:
        return f"{own_address.of(cloud)}/32"
    return checks.EVERYWHERE if checked == checks.ANYWHERE else checked
