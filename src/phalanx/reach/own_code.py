"""Writes a package of phalanx as the code of a job: nodes have no phalanx installed."""

from __future__ import annotations

from importlib import resources
from pathlib import Path


def write_package(name: str, directory: Path) -> None:
    """Copy the package `phalanx.NAME` alone, in an empty `phalanx`; it must need nothing else of phalanx."""
    package = directory / "phalanx" / name
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    for source in resources.files(f"phalanx.{name}").iterdir():
        if source.name.endswith(".py"):
            (package / source.name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
