"""phalanx image: make machine images from recipes, or prepare a node for an image of it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from phalanx.cli import image_making
from phalanx.cli.console import confirm, print_json, print_table, require_terminal, say
from phalanx.cli.environment import complete_recipes
from phalanx.cli.image_making import GPU_TYPE, TYPE, record, state
from phalanx.cli.options import (
    cluster_option,
    debug_option,
    json_option,
    load_cluster,
    region_option,
    verbose_option,
    yes_option,
)
from phalanx.images import cleaning, making, shelf
from phalanx.images.base import base
from phalanx.jobs import environments
from phalanx.local import images
from phalanx.spec.cloud_names import CLOUDS
from phalanx.spec.spec_load import load

if TYPE_CHECKING:
    from phalanx.images.image_stack import Order

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _place_options(decorated: Decorated) -> Decorated:
    cloud = click.option(
        "--cloud", type=click.Choice(list(CLOUDS)), default="local", show_default=True, help="The cloud."
    )
    return cloud(region_option(decorated))


@click.group("image")
def command() -> None:
    """Make machine images (AMIs) of recipes, or prepare a node for an image of itself.

    A cluster with `image: recipe:torch` boots from such an image, and installs nothing. Without --cloud, images are
    made in the local cloud, for clusters on this machine.

    \b
    Examples:
      phalanx image build torch --cloud aws --region eu-west-1
      phalanx image ls
      phalanx image show torch
    """


@command.command("clean")
@cluster_option
@yes_option
@debug_option
def clean(name: str | None, file: Path | None, yes: bool) -> None:
    """Remove everything that belongs to a node's cluster, users and instance, before you make an image of the node.

    It removes the agent and its state, keys and certificates, the job user with its home and environments,
    everyone's authorized keys, cloud-init's state, the machine id, logs, shell histories and temporary files. What
    you have installed stays. The cluster must have one node. Afterwards, you can only make the image and run
    `phalanx down`.

    \b
    Examples:
      phalanx image clean
      phalanx image clean --yes && aws ec2 create-image --instance-id i-… --name my-image
    """
    cluster = load_cluster(name, file)
    node = cleaning.only_node(cluster)
    if not yes:
        require_terminal()
        question = f"Clean {node.instance_id}? Nobody can log in to it afterwards, and cluster {cluster.name} ends."
        confirm(question)
    cleaning.clean(cluster)
    say(f"{node.instance_id} is clean. Make the image, wait until it is available, and delete the cluster:")
    say(f"  aws ec2 create-image --region {cluster.region} --instance-id {node.instance_id} --name NAME")
    say("  phalanx down")


@command.command("build")
@click.argument("recipe", shell_complete=complete_recipes)
@_place_options
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    help="The cluster's file.",
)
@click.option("--base", "alias", metavar="IMAGE", help="What the image is built on. Without it: as the recipe says.")
@click.option(
    "--type",
    "instance_type",
    help=f"The machines' type.  [default: {TYPE}, or {GPU_TYPE} for GPUs]",
)
@click.option("--again", is_flag=True, help="Make a new one, even if there is one of the same recipe and base.")
@verbose_option
@json_option
@debug_option
def build(
    recipe: str,
    cloud: str,
    region: str,
    file: Path | None,
    alias: str | None,
    instance_type: str | None,
    again: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Make an image of a recipe with EC2 Image Builder, in a stack of its own, and test it.

    The image has the recipe's packages, checked by their hashes, and what every node needs. The recipe's own test runs
    on a machine from the finished image. Ctrl-C leaves the build running; the same command follows it again.

    With --file, it is made where a cluster of that file would be: in its cloud, region and `worker_subnet`, with its
    tags and permissions boundary, on encrypted disks.

    \b
    Examples:
      phalanx image build torch
      phalanx image build torch --file phalanx.yaml
      phalanx image build chainermn --cloud aws --region eu-west-1 --base ubuntu-22.04
    """
    spec = load(file) if file else None
    if spec:
        _refuse_beside_file("cloud", "region")
        cloud, region = spec.cloud, spec.region
    order = _order(recipe, cloud, alias, instance_type)
    connected = image_making.connect(cloud, region)
    where = f" --file {shlex.quote(str(file))}" if file else _place(cloud, region)
    command = f"phalanx image build {recipe}{where}{f' --base {alias}' if alias else ''}"
    return image_making.make(
        connected, order, again=again, verbose=verbose, as_json=as_json, command=command, spec=spec
    )


def _refuse_beside_file(*options: str) -> None:
    context = click.get_current_context()
    for one in options:
        if context.get_parameter_source(one) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"--{one} can't be given with --file, which decides it", context)


def _place(cloud: str, region: str) -> str:
    """Return the options that lead to the same images again."""
    return "" if cloud == "local" else f" --cloud {cloud} --region {region}"


def _order(name: str, cloud: str, alias: str | None, instance_type: str | None) -> Order:
    """Return the image to make; refuse a base that can't be used, before anything starts."""
    chosen = environments.recipe(name)
    if cloud == "local":
        below = image_making.local_base(chosen, alias)
        images.require(below.alias, below.row["local"])
    else:
        below = base(alias or chosen.image["base"])
    return image_making.order_of(chosen, below, instance_type)


@command.command("ls")
@_place_options
@json_option
@debug_option
def list_images(cloud: str, region: str, as_json: bool) -> None:
    """List the images that were made from recipes, and those that are being made.

    \b
    Examples:
      phalanx image ls --cloud aws
      phalanx image ls --json | jq -r '.[].image_id'
    """
    there = shelf.shelved(image_making.connect(cloud, region))
    if as_json:
        print_json([record(one) for one in there])
    elif not there:
        say("No image was made from a recipe. `phalanx image build torch` makes one.")
    else:
        rows = [(one.name, one.base, one.architecture or "-", one.image_id or "-", state(one)) for one in there]
        print_table(("NAME", "BASE", "PROCESSOR", "IMAGE", "STATE"), rows)


@command.command("show")
@click.argument("name")
@_place_options
@json_option
@debug_option
def show(name: str, cloud: str, region: str, as_json: bool) -> None:
    """Show an image's manifest: the version of every library in it. NAME is RECIPE or RECIPE@VERSION.

    \b
    Examples:
      phalanx image show torch
      phalanx image show torch --json | jq -r .packages.numpy
    """
    connected = image_making.connect(cloud, region)
    found = shelf.find(connected, name)
    contents = making.read_manifest(connected, found)
    if as_json:
        print_json(contents)
        return
    say(f"{found.name} is {found.image_id}, made on {found.base}, with Python {contents['python']}")
    for title, key in (("PACKAGE", "packages"), ("OF THE SYSTEM", "system")):
        say()
        print_table((title, "VERSION"), sorted(contents[key].items()))


@command.command("rm")
@click.argument("name")
@_place_options
@yes_option
@verbose_option
@debug_option
def remove(name: str, cloud: str, region: str, yes: bool, verbose: bool) -> int:
    """Delete an image with its snapshots and its stack, and prove that nothing is left.

    A build in progress ends. Clusters that run from the image keep running, and can't start further nodes from it.

    \b
    Examples:
      phalanx image rm torch@2026.1122.905 --cloud aws --region eu-west-1
    """
    connected = image_making.connect(cloud, region)
    found = shelf.find(connected, name)
    command = f"phalanx image rm {found.name}{_place(cloud, region)}"
    return image_making.remove(connected, found, yes=yes, verbose=verbose, command=command)
