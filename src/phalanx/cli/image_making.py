"""Make an image of a recipe, or follow one that is being made: what `image build` and `local image build` share."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from phalanx import connection
from phalanx.cli.console import confirm, duration, note, print_json, require_terminal, say
from phalanx.cli.progress import Watch
from phalanx.errors import LocalCloudError
from phalanx.images import making, place, shelf
from phalanx.images.base import local_bases
from phalanx.images.image_stack import Order
from phalanx.local import endpoint, images

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws
    from phalanx.images.base import Base
    from phalanx.images.shelf import Shelved
    from phalanx.jobs.environments import Recipe
    from phalanx.spec.spec import ClusterSpec

TYPE, GPU_TYPE = "m5.large", "g4dn.xlarge"
"""Types of machines that build and test: enough memory for a framework, and a GPU where the recipe needs one."""


def connect(cloud: str, region: str) -> Aws:
    """Return the cloud; the local one is started if need be."""
    connection.begin(cloud)
    return connection.connect(cloud, region)


def order_of(chosen: Recipe, below: Base, instance_type: str | None = None) -> Order:
    """Return the image to make; refuse a base that can't be used, before anything starts."""
    below.python_for(chosen)
    machine = instance_type or (GPU_TYPE if chosen.image["cuda"] else TYPE)
    return Order(chosen, below, making.new_version(time.time()), machine, below.architecture_for(machine))


def local_base(chosen: Recipe, alias: str | None) -> Base:
    """Return the base of the recipe's image in the local cloud: one that is built here if there is one."""
    able = local_bases(chosen, alias)
    return next((one for one in able if images.is_built(one.row["local"])), able[0])


def make(
    connected: Aws,
    order: Order,
    *,
    again: bool,
    verbose: bool,
    as_json: bool,
    command: str,
    spec: ClusterSpec | None = None,
) -> int:
    """Make the image and show its progress, unless there is one; return the exit code.

    `command` is the user's own, and `spec` a cluster of the account, whose network and rules the build shares.
    """
    started_s = time.monotonic()
    there = _existing(shelf.shelved(connected), order, again)
    if there is None or there.in_progress:
        connected.site.require_full_system(order.base.alias)
        if there is None:
            order = replace(order, place=place.find(connected, order.instance_type, spec))
        begun = making.Making.join(connected, there) if there else making.Making.begin(connected, order)
        with Watch(f"making an image of {order.recipe.name}", started_s, verbose) as watch:
            try:
                watch.follow(begun.steps())
            except KeyboardInterrupt:
                note(f"interrupted; the build continues. `{command}` follows it again.")
                return 130
            finally:
                connected.site.stop_if_idle()
        there = shelf.find(connected, there.name if there else f"{order.recipe.name}@{order.version}")
        note(f"made in {duration(watch.elapsed_s)}")
    contents = making.read_manifest(connected, there)
    # Again, because the manifest's hash is a tag of the image now.
    _report(shelf.find(connected, there.name), contents, as_json)
    return 0


def _existing(there: list[Shelved], order: Order, again: bool) -> Shelved | None:
    """Return the image that is there already or is being made."""
    alike = [one for one in there if (one.recipe, one.base) == (order.recipe.name, order.base.alias)]
    building = [one for one in alike if one.in_progress]
    same = [one for one in alike if one.available and one.digest == order.recipe.environment.digest]
    return next(iter(building or ([] if again else same)), None)


def _report(made: Shelved, contents: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(record(made))
        return
    packages, system = len(contents["packages"]), len(contents["system"])
    say(f"{made.name} is {made.image_id}: {packages} packages of Python {contents['python']}, {system} of the system.")
    say(f"Use it with `image: recipe:{made.recipe}`; `phalanx image show {made.name}` lists what it contains.")


def state(one: Shelved) -> str:
    """Say in words what has become of an image."""
    if one.in_progress:
        return "being made"
    return "available" if one.available else f"failed ({one.status})"


def record(one: Shelved) -> dict[str, Any]:
    """Return an image as JSON shows it."""
    return {**vars(one), "name": one.name, "state": state(one)}


def remove(connected: Aws, found: Shelved, *, yes: bool, verbose: bool, command: str, as_json: bool = False) -> int:
    """Delete an image, and show what is deleted; return the exit code."""
    _require_unused(connected, found)
    if not yes:
        require_terminal()
        confirm(f"Delete {found.name} ({found.image_id or 'being made'})?")
    with Watch(f"deleting {found.name}", time.monotonic(), verbose) as watch:
        try:
            watch.follow(making.remove(connected, found))
        except KeyboardInterrupt:
            note(f"interrupted; the deletion continues. `{command}` follows it again.")
            return 130
    connected.site.stop_if_idle()
    if as_json:
        print_json({"name": found.name, "removed": True})
    else:
        say(f"{found.name} is deleted; nothing of it is left.")
    return 0


def _require_unused(connected: Aws, found: Shelved) -> None:
    """Raise LocalCloudError if local nodes run from the image."""
    if connected.name == "local" and found.image_id:
        require_unused(found.name, "image_id", found.image_id)


def require_unused(name: str, field: str, value: str) -> None:
    """Raise LocalCloudError if nodes of the local cloud run from an image, whose `field` they report as `value`.

    Their disks are layers above its files.
    """
    nodes = endpoint.status()["nodes"] if endpoint.find() else []
    stacks: dict[str, list[str]] = {}
    for node in nodes:
        if node["image_id"] and node[field] == value:
            stacks.setdefault(node["stack"], []).append(node["instance_id"])
    if stacks:
        users = [", ".join(ids) + (f" of {stack}" if stack else "") for stack, ids in stacks.items()]
        names = ", ".join(filter(None, stacks))
        raise LocalCloudError(
            f"{name} is in use by {' and '.join(users)}",
            f"Delete them first: `phalanx down` in the directory of {names}" if names else "Terminate them first.",
            code="image-in-use",
        )
