"""The clouds by name; a cloud's module (and boto3 with it) is imported only when it is chosen."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from phalanx.errors import SpecError

if TYPE_CHECKING:
    from phalanx.cloud import Cloud

MODULES = {"aws": "phalanx.clouds.aws", "local": "phalanx.clouds.local"}


def get(name: str, region: str) -> Cloud:
    """A cloud to talk to. Connects to nothing yet and starts nothing."""
    return importlib.import_module(_module(name)).connect(region)


def begin(name: str) -> None:
    """Start what the cloud needs on this machine, without waiting for it: the local cloud's process, or nothing."""
    if _module(name) == MODULES["local"]:
        importlib.import_module("phalanx.clouds.endpoint").begin()


def _module(name: str) -> str:
    if name not in MODULES:
        raise SpecError(f"there is no cloud '{name}'", f"Choose one of: {', '.join(MODULES)}.")
    return MODULES[name]
