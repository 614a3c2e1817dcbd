"""Images that Image Builder has made: kept on this machine, and registered in EC2, also of later local clouds."""

from __future__ import annotations

import platform
import secrets
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import AmiBackend

from phalanx.localcloud import moto_setup
from phalanx.localcloud.context import Context
from phalanx.localcloud.images import store
from phalanx.localcloud.images.store import Image

PATCHED = ("moto.ec2.models.amis.AmiBackend.deregister_image",)
_moto_deregister: Any = AmiBackend.deregister_image


def install(context: Context) -> None:
    """Have DeregisterImage remove the image's files, too."""

    def deregister(self: AmiBackend, ami_id: str) -> None:
        _moto_deregister(self, ami_id)
        discard(context, ami_id)

    AmiBackend.deregister_image = deregister


def new_id() -> str:
    """Return an id for an image."""
    return f"ami-{secrets.token_hex(8)}1"


def complete(context: Context, region: str, partial: Path, image: Image) -> None:
    """Keep an image whose tree is in `partial`, and register it."""
    store.complete(partial, image)
    moto_setup.FULL_IMAGES[image.name] = image.ami
    backend = ec2_backends[context.account][region]
    backend.amis[image.ami] = moto_setup.ami_of(backend, image)


def deregister(context: Context, region: str, ami_id: str) -> None:
    """Deregister an image and remove its files; no error if it is gone."""
    backend = ec2_backends[context.account][region]
    if ami_id in backend.amis:
        backend.deregister_image(ami_id)


def discard(context: Context, ami_id: str) -> None:
    """Remove the files of an image that Image Builder made, and forget it; no error if it is gone."""
    names = [name for name, known in moto_setup.FULL_IMAGES.items() if known == ami_id]
    for name in names:
        image = store.find(images_of(context), name)
        if image and image.ami:
            del moto_setup.FULL_IMAGES[name]
            remove_tree(Path(image.path))


def remove_tree(path: Path) -> None:
    """Remove a directory if it exists. As root of the local cloud's namespace, this process may remove nodes' files."""
    if path.exists():
        shutil.rmtree(path)


def images_of(context: Context) -> Path:
    """Return the directory of images with a full operating system."""
    return context.images or Path("/nonexistent")


def described(context: Context, image: Image, tree: Path) -> Image:
    """Return the image with what is known once its file system is in `tree`."""
    status = (tree / "var/lib/dpkg/status").read_text(errors="replace")
    return replace(
        image,
        path=str(images_of(context) / image.name),
        built=context.clock.now().strftime("%Y-%m-%d"),
        size_bytes=store.size_bytes(tree),
        packages=status.count("\nStatus: install ok installed"),
        root=context.root_of_nodes,
        tags={**image.tags, "phalanx:machine": platform.machine()},
    )
