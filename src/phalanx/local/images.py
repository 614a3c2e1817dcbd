"""The images with a full operating system that local clusters can use: built, listed and removed on this machine."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.data import table
from phalanx.errors import LocalCloudError
from phalanx.local import isolated
from phalanx.spec.own_tags import BASE_TAG, RECIPE_TAG, VERSION_TAG
from phalanx.spec.spec_checks import OF_RECIPE

_FULL = "-full"
# What the components of a recipe write (phalanx.images.component).
_MANIFEST = "/usr/local/lib/phalanx/manifest.json"


@dataclass(frozen=True)
class Built:
    """An image that is built on this machine: of a system, or of a recipe on the system `base`.

    `use` is what `image:` in phalanx.yaml says for it, and `folder` its directory's name.
    """

    name: str
    base: str
    use: str
    folder: str
    path: str
    built: str
    packages: int
    size_bytes: int
    image_id: str = ""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Built:
        """Return the image of a record of the local cloud's."""
        tags, name, base = record["tags"], record["name"], ""
        use = f"{name}{_FULL}"
        if RECIPE_TAG in tags:
            name, base = f"{tags[RECIPE_TAG]}@{tags[VERSION_TAG]}", tags[BASE_TAG].removesuffix(_FULL)
            use = f"{OF_RECIPE}{name}"
        same = {key: record[key] for key in ("path", "built", "packages", "size_bytes")}
        return cls(name, base, use, record["name"], image_id=record["ami"], **same)

    @property
    def order(self) -> tuple[Any, ...]:
        """A key that sorts systems by name, then recipes by name, the newest first."""
        recipe, _, version = self.name.partition("@")
        return (bool(self.base), recipe, [-int(part) for part in version.split(".") if part])

    def to_record(self) -> dict[str, Any]:
        return vars(self)


def directory() -> Path:
    """Return where images are kept: below $XDG_DATA_HOME, because all local clouds of this user share them."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base).absolute() / "phalanx" / "images"


def local_name(alias: str | None) -> str:
    """Return the name under which the image of an alias is built here; "" for images of other clouds."""
    return table("images")["images"].get(alias or "", {}).get("local", "")


def buildable() -> list[str]:
    """Return the names of the images that can be built here."""
    return [row["local"] for row in table("images")["images"].values() if "local" in row]


def built() -> list[Built]:
    """Return the images on this machine: systems, then those of recipes, the newest first."""
    return sorted((Built.of(record) for record in run("list")), key=lambda one: one.order)


def find(name: str) -> Built:
    """Return the image of this name: a system, `RECIPE@VERSION`, or `RECIPE` for its newest. Raises LocalCloudError."""
    there = built()
    suitable = [one for one in there if name in (one.name, one.name.partition("@")[0])]
    if not suitable:
        known = ", ".join(one.name for one in there)
        hint = f"There are: {known}." if known else f"`phalanx local image build {name.partition('@')[0]}` builds one."
        raise LocalCloudError(f"there is no image {name} on this machine", hint, code="no-image")
    return suitable[0]


def contents(image: Built) -> dict[str, Any]:
    """Return the versions of an image's packages, and of a recipe's image its whole manifest."""
    return run("show", image.folder, "--manifest", _MANIFEST)


def is_built(name: str) -> bool:
    return any(record["name"] == name for record in run("list"))


def require(alias: str, name: str) -> None:
    """Raise LocalCloudError unless the image is built."""
    if not is_built(name):
        raise LocalCloudError(
            f"image: {alias} is not built on this machine",
            f"`phalanx local image build {name}` builds it, once, in about four minutes.",
            code="no-image",
        )


def run(*arguments: str) -> Any:
    """Run a command on images, with its progress on standard error; return its answer. Raises LocalCloudError."""
    argv = isolated.program("image", "--images", str(directory()), *arguments)
    process = subprocess.Popen(argv, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        printed, _ = process.communicate()
    except KeyboardInterrupt:
        # The terminal's Ctrl-C has reached it, too: it removes what it has made so far.
        process.wait()
        raise
    answer = json.loads(printed or "{}")
    if process.returncode:
        message, _, hint = answer.get("message", f"it ended with status {process.returncode}").partition("\n")
        raise LocalCloudError(message, hint, code="image-failed")
    return answer
