"""Writes a package of phalanx as the code of a job: nodes have no phalanx installed."""

from __future__ import annotations

from importlib import resources
from pathlib import Path


def write_package(name: str, directory: Path, *modules: str) -> None:
    """Copy the package `phalanx.NAME` into an empty `phalanx`, with these modules of others, such as `node.sigv4`.

    They must need nothing else of phalanx, except `phalanx.counts`, which is always copied.
    """
    package = directory / "phalanx" / name
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    counts = resources.files("phalanx") / "counts.py"
    (package.parent / "counts.py").write_text(counts.read_text(encoding="utf-8"), encoding="utf-8")
    for source in resources.files(f"phalanx.{name}").iterdir():
        if source.name.endswith(".py"):
            (package / source.name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    for module in modules:
        other, _, stem = module.partition(".")
        (package.parent / other).mkdir(exist_ok=True)
        text = (resources.files(f"phalanx.{other}") / f"{stem}.py").read_text(encoding="utf-8")
        (package.parent / other / f"{stem}.py").write_text(text, encoding="utf-8")
