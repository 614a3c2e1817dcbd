"""The images of an account's region: those that are being made, and those that are there, by recipe and version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phalanx.errors import CloudError
from phalanx.images.image_stack import DIGEST_TAG, MANIFEST_TAG, stack_prefix
from phalanx.spec.own_tags import BASE_TAG, RECIPE_TAG, VERSION_TAG

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws


@dataclass(frozen=True)
class Shelved:
    """An image that was made from a recipe, or is being made.

    `status` is its stack's, "" if that is gone. `image_id` and `manifest`, the hash of its list of contents, are "" as
    long as it is not complete.
    """

    recipe: str
    version: str
    base: str
    digest: str
    stack: str
    status: str = ""
    image_id: str = ""
    architecture: str = ""
    manifest: str = ""

    @property
    def name(self) -> str:
        """Its name for users, such as torch@2026.1122.905."""
        return f"{self.recipe}@{self.version}"

    @property
    def in_progress(self) -> bool:
        return self.status == "CREATE_IN_PROGRESS"

    @property
    def available(self) -> bool:
        return bool(self.image_id) and not self.in_progress

    @property
    def order(self) -> tuple[int, ...]:
        """A key that sorts versions by age."""
        return tuple(int(part) for part in self.version.split("."))


def shelved(api: Aws) -> list[Shelved]:
    """Return all images, by recipe, the newest first."""
    stacks = {tags[VERSION_TAG]: (tags, entry) for tags, entry in _stacks(api)}
    amis = {tags[VERSION_TAG]: (tags, entry) for tags, entry in _amis(api)}
    found = [_joined(stacks.get(version), amis.get(version)) for version in stacks.keys() | amis.keys()]
    return sorted(sorted(found, key=lambda one: one.order, reverse=True), key=lambda one: one.recipe)


def find(api: Aws, name: str) -> Shelved:
    """Return the image of this name: `RECIPE@VERSION`, or `RECIPE` for its newest. Raises CloudError."""
    there = shelved(api)
    recipe, _, version = name.partition("@")
    suitable = [one for one in there if one.recipe == recipe and version in ("", one.version)]
    if not suitable:
        known = ", ".join(one.name for one in there)
        raise CloudError(
            f"there is no image {name} in {api.region}",
            f"There are: {known}." if known else f"`phalanx image build {recipe}` makes one.",
            code="no-image",
        )
    return suitable[0]


def _joined(stack: Any, ami: Any) -> Shelved:
    tags = {**(stack[0] if stack else {}), **(ami[0] if ami else {})}
    return Shelved(
        recipe=tags[RECIPE_TAG],
        version=tags[VERSION_TAG],
        base=tags.get(BASE_TAG, ""),
        digest=tags.get(DIGEST_TAG, ""),
        stack=stack_prefix(tags[RECIPE_TAG]) + tags[VERSION_TAG].replace(".", "-"),
        status=stack[1]["StackStatus"] if stack else "",
        image_id=ami[1]["ImageId"] if ami else "",
        architecture=ami[1]["Architecture"] if ami else "",
        manifest=tags.get(MANIFEST_TAG, ""),
    )


def _stacks(api: Aws) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    for entry in api.pages("cloudformation", "describe_stacks", "Stacks"):
        yield from _tagged(entry)


def _amis(api: Aws) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    ours = [{"Name": "tag-key", "Values": [RECIPE_TAG]}]
    for entry in api.call("ec2", "describe_images", Owners=["self"], Filters=ours)["Images"]:
        yield from _tagged(entry)


def _tagged(entry: dict[str, Any]) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Yield the entry with its tags, if it is of an image."""
    tags = {tag["Key"]: tag["Value"] for tag in entry.get("Tags", [])}
    if {RECIPE_TAG, VERSION_TAG} <= tags.keys():
        yield tags, entry
