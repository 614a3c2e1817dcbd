"""Images that Image Builder has made: kept on this machine, and registered in EC2, also of later local clouds."""

from __future__ import annotations

import contextlib
import platform
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import AmiBackend

from localcloud.api import moto_setup
from localcloud.context import Context
from localcloud.images import store
from localcloud.images.store import Image

PATCHED = ("moto.ec2.models.amis.AmiBackend.deregister_image",)
_moto_deregister: Any = AmiBackend.deregister_image


def install(context: Context) -> None:
    """Have DeregisterImage remove the image's files, too."""

    def patched(self: AmiBackend, ami_id: str) -> None:
        _moto_deregister(self, ami_id)
        discard(context, ami_id)
        # It was an image of this machine, and so of each region.
        deregister(context, ami_id)

    AmiBackend.deregister_image = patched


def new_id() -> str:
    """Return an id for an image."""
    return f"ami-{secrets.token_hex(8)}1"


@contextlib.contextmanager
def partial(context: Context, name: str) -> Iterator[Path]:
    """Yield the directory of an image that is being made, and remove it unless it was renamed."""
    directory = images_of(context)
    directory.mkdir(parents=True, exist_ok=True)
    store.remove_abandoned(directory, remove_tree)
    with store.locked(directory, name):
        place = directory / f"{name}{store.PARTIAL}"
        place.mkdir()
        try:
            yield place
        finally:
            remove_tree(place)
            store.lock_of(directory, name).unlink()


def complete(context: Context, partial: Path, image: Image) -> None:
    """Keep an image whose tree is in `partial`, and register it: in each region, as a later local cloud does."""
    store.complete(partial, image)
    moto_setup.FULL_IMAGES[image.name] = image.ami
    moto_setup.OWN_IMAGES[image.ami] = image
    for backend in ec2_backends[context.account].values():
        backend.amis[image.ami] = moto_setup.ami_of(backend, image)


def deregister(context: Context, ami_id: str) -> None:
    """Deregister an image and remove its files; no error if it is gone."""
    for backend in list(ec2_backends[context.account].values()):
        if ami_id in backend.amis:
            backend.deregister_image(ami_id)


def discard(context: Context, ami_id: str) -> None:
    """Remove the files of an image that Image Builder made, and forget it; no error if it is gone."""
    names = [name for name, known in moto_setup.FULL_IMAGES.items() if known == ami_id]
    for name in names:
        image = store.find(images_of(context), name)
        if image and image.ami:
            del moto_setup.FULL_IMAGES[name]
            moto_setup.OWN_IMAGES.pop(ami_id, None)
            remove_tree(Path(image.path))


def remove_tree(path: Path) -> None:
    """Remove an image or a part of one if it exists. As root of the local cloud's namespace, this process may."""
    if path.exists():
        store.forget(path)
        # Ten thousands of files: in this process, each request would wait for them.
        subprocess.run(["rm", "-rf", "--", str(path)], check=True)


def images_of(context: Context) -> Path:
    """Return the directory of images with a full operating system."""
    return context.images or Path("/nonexistent")


def described(context: Context, image: Image, tree: Path) -> Image:
    """Return the image with what is known once its file system is in `tree`."""
    return replace(
        image,
        path=str(images_of(context) / image.name),
        built=context.clock.now().strftime("%Y-%m-%d"),
        size_bytes=store.size_bytes(tree),
        packages=store.packages(tree),
        root=context.root_of_nodes,
        tags={**image.tags, "localcloud:machine": platform.machine()},
    )
