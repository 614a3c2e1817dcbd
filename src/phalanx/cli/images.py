"""phalanx local image: build, list and remove images with a full operating system."""

from __future__ import annotations

import click

from phalanx.cli.console import print_json, print_table, say
from phalanx.cli.options import debug_option, json_option
from phalanx.clouds import images


@click.group("image")
def image() -> None:
    """Build, list or remove images with a full operating system, for `image:` in phalanx.yaml.

    Other local clusters share this machine's own programs, and need no image.

    \b
    Examples:
      phalanx local image build ubuntu-24.04
      phalanx local image list
    """


@image.command("build")
@click.argument("name", type=click.Choice(images.buildable()))
@json_option
@debug_option
def build(name: str, as_json: bool) -> None:
    """Build an image from this machine's package sources or the distribution's mirrors, in about four minutes.

    Needs mmdebstrap. An image that exists is replaced once the new one is complete. Ctrl-C leaves nothing behind.
    """
    built = images.run("build", name)
    print_json(built) if as_json else say(f"{name} is in {built['path']}; use it with `image: {name}-full`.")


@image.command("list")
@json_option
@debug_option
def list_images(as_json: bool) -> None:
    """List the images that are built on this machine."""
    built = images.run("list")
    if as_json:
        print_json(built)
    elif not built:
        say("No image is built. `phalanx local image build ubuntu-24.04` builds one.")
    else:
        columns = ("name", "built", "packages", "size", "path")
        sized = [{**one, "size": f"{one['size_bytes'] / 1e6:.0f} MB"} for one in built]
        print_table([column.upper() for column in columns], [[one[c] for c in columns] for one in sized])


@image.command("rm")
@click.argument("name", type=click.Choice(images.buildable()))
@debug_option
def remove(name: str) -> None:
    """Remove an image. Nodes that run it must have ended."""
    removed = images.run("rm", name)["removed"]
    say(f"{name} is removed." if removed else f"{name} was not built.")
