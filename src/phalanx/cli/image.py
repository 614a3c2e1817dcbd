"""phalanx image: prepare a node for an image of it."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli.console import require_terminal, say
from phalanx.cli.options import cluster_option, debug_option, load_cluster


@click.group("image")
def command() -> None:
    """Prepare a node for an image (AMI) of it.

    \b
    Examples:
      phalanx image clean
    """


@command.command("clean")
@cluster_option
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@debug_option
def clean(name: str | None, file: Path | None, yes: bool) -> None:
    """Remove all that binds a cluster's node to its stack, its users and its instance, before you make an image of it.

    That is the agent and its state, keys and certificates, the job user, its home and its environments, everyone's
    authorized keys, cloud-init's state, the machine id, logs, shell histories and temporary files. What you have
    installed stays. The cluster must have one node; afterwards it only serves for the image, and for `phalanx down`.

    \b
    Examples:
      phalanx image clean
      phalanx image clean --yes && aws ec2 create-image --instance-id i-… --name my-image
    """
    from phalanx.reach import image

    cluster = load_cluster(name, file)
    node = image.only_node(cluster)
    if not yes:
        require_terminal()
        question = f"Clean {node.instance_id}? Nobody can log in to it afterwards, and cluster {cluster.name} ends."
        click.confirm(question, abort=True, err=True)
    image.clean(cluster)
    say(f"{node.instance_id} is clean. Make the image, wait until it is available, and delete the cluster:")
    say(f"  aws ec2 create-image --region {cluster.region} --instance-id {node.instance_id} --name NAME")
    say("  phalanx down")
