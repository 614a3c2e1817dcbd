"""phalanx local image: build, list, show and remove images for local clusters: systems, and recipes on them."""

from __future__ import annotations

import click

from phalanx.cli import image_making
from phalanx.cli.console import note, print_json, print_table, say
from phalanx.cli.environment import complete_recipes
from phalanx.cli.options import debug_option, json_option, verbose_option
from phalanx.errors import LocalCloudError
from phalanx.images import shelf
from phalanx.jobs.environments import recipe, recipe_names
from phalanx.local import images

_REGION = "us-east-1"


def _complete_buildable(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    systems = [name for name in images.buildable() if name.startswith(incomplete)]
    return systems + complete_recipes(context, parameter, incomplete)


def _complete_systems(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in images.buildable() if name.startswith(incomplete)]


def _complete_built(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [one.name for one in images.built() if one.name.startswith(incomplete)]


@click.group("image")
def image() -> None:
    """Build, list, show or remove images for `image:` in phalanx.yaml: operating systems, and recipes on them.

    Other local clusters share this machine's own programs, and need no image.

    \b
    Examples:
      phalanx local image build ubuntu-24.04
      phalanx local image build chainermn
      phalanx local image ls
    """


@image.command("build")
@click.argument("name", shell_complete=_complete_buildable)
@click.option(
    "--base",
    metavar="IMAGE",
    shell_complete=_complete_systems,
    help="What the image is built on. Without it: a system that is built and suits, or else the recipe's own.",
)
@click.option("--again", is_flag=True, help="Make a new one, even if there is one of the same recipe and base.")
@verbose_option
@json_option
@debug_option
def build(name: str, base: str | None, again: bool, verbose: bool, as_json: bool) -> int:
    """Build an image of an operating system, or of a recipe on one. NAME is a system or a recipe.

    A system is built from this machine's package sources or the distribution's mirrors, in about four minutes; this
    needs mmdebstrap. An image that exists is replaced once the new one is complete. Ctrl-C leaves nothing behind.

    A recipe is installed and tested on a node of the local cloud, by the scripts that `phalanx image build` gives to
    EC2 Image Builder; nodes of a cluster with `image: recipe:NAME` then install nothing. Its system is built first if
    there is none. Ctrl-C leaves the build running, and the same command follows it again.

    \b
    Examples:
      phalanx local image build ubuntu-24.04
      phalanx local image build chainermn --base debian-12
    """
    if name not in images.buildable():
        return _build_recipe(name, base, again, verbose, as_json)
    if base:
        raise click.UsageError(f"--base is for recipes, and {name} is a system")
    built = images.run("build", name)
    print_json(built) if as_json else say(f"{name} is in {built['path']}; use it with `image: {name}-full`.")
    return 0


def _build_recipe(name: str, base: str | None, again: bool, verbose: bool, as_json: bool) -> int:
    if name not in recipe_names():
        raise LocalCloudError(
            f"there is no system or recipe '{name}'",
            f"Systems: {', '.join(images.buildable())}. Recipes: {', '.join(recipe_names())}.",
            code="no-recipe",
        )
    chosen = recipe(name)
    below = image_making.local_base(chosen, base)
    if not images.is_built(below.row["local"]):
        note(f"{name} is built on {below.row['local']}, which is built first")
        images.run("build", below.row["local"])
    order = image_making.order_of(chosen, below)
    connected = image_making.connect("local", _REGION)
    command = f"phalanx local image build {name}{f' --base {base}' if base else ''}"
    return image_making.make(connected, order, again=again, verbose=verbose, as_json=as_json, command=command)


@image.command("ls")
@json_option
@debug_option
def list_images(as_json: bool) -> None:
    """List the images that are built on this machine.

    \b
    Examples:
      phalanx local image ls
      phalanx local image ls --json | jq -r '.[].use'
    """
    there = images.built()
    if as_json:
        print_json([one.to_record() for one in there])
    elif not there:
        say("No image is built. `phalanx local image build ubuntu-24.04` builds one.")
    else:
        columns = ("NAME", "BASE", "BUILT", "PACKAGES", "SIZE", "IMAGE:")
        rows = [
            (one.name, one.base or "-", one.built, one.packages, f"{one.size_bytes / 1e6:.0f} MB", one.use)
            for one in there
        ]
        print_table(columns, rows)


@image.command("show")
@click.argument("name", shell_complete=_complete_built)
@json_option
@debug_option
def show(name: str, as_json: bool) -> None:
    """Show the version of every package in an image. NAME is a system, a recipe, or RECIPE@VERSION.

    \b
    Examples:
      phalanx local image show chainermn
      phalanx local image show chainermn --json | jq -r .packages.numpy
    """
    one = images.find(name)
    contents = images.contents(one)
    if as_json:
        print_json(contents)
        return
    made = f", made on {one.base}, with Python {contents['python']}" if one.base else ""
    say(f"{one.name} is in {one.path}{made}")
    for title, key in (("PACKAGE", "packages"), ("OF THE SYSTEM", "system")):
        if key in contents:
            say()
            print_table((title, "VERSION"), sorted(contents[key].items()))


@image.command("rm")
@click.argument("name", shell_complete=_complete_built)
@verbose_option
@json_option
@debug_option
def remove(name: str, verbose: bool, as_json: bool) -> int:
    """Remove an image. Nodes that run it must have ended. A recipe's image in the making is given up.

    \b
    Examples:
      phalanx local image rm debian-12
      phalanx local image rm torch@2026.1122.905
    """
    if name not in images.buildable():
        return _remove_recipe(name, verbose, as_json)
    image_making.require_unused(name, "image", name)
    removed = images.run("rm", name)
    if as_json:
        print_json(removed)
    else:
        say(f"{name} is removed." if removed["removed"] else f"{name} was not built.")
    return 0


def _remove_recipe(name: str, verbose: bool, as_json: bool) -> int:
    connected = image_making.connect("local", _REGION)
    found = shelf.find(connected, name)
    command = f"phalanx local image rm {found.name}"
    return image_making.remove(connected, found, yes=True, verbose=verbose, command=command, as_json=as_json)
