"""Describe the job that fetches data sets: one process, which needs only the standard library."""

from __future__ import annotations

import difflib
import functools
import json
import posixpath
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from phalanx.datasets.fetch import CATALOG
from phalanx.errors import JobError
from phalanx.jobs.job_model import JobSpec

DIRECTORY = "datasets"
"""Where data sets are, relative to the shared directory."""

_SCHEMES = ("http://", "https://", "file:///")


@functools.cache
def catalog() -> Mapping[str, Mapping[str, Any]]:
    """Return the known data sets by name."""
    return json.loads((resources.files("phalanx.datasets") / CATALOG).read_text(encoding="utf-8"))


def fetch_job(names: Sequence[str], directory: Path, shared: str, source: str | None = None) -> JobSpec:
    """Return the job that fetches these data sets; its code is written into `directory`, which must not exist.

    `source` is a URL that ends with a slash, used instead of the catalog's. Raises JobError.
    """
    entries = {name: _entry(name) for name in names}
    if source is not None:
        if not source.startswith(_SCHEMES) or not source.endswith("/"):
            raise JobError(f"--from {source} is not the URL of a directory", "Give one as in https://mirror/mnist/.")
        entries = {name: {**entry, "sources": [source]} for name, entry in entries.items()}
    _write_program(directory)
    (directory / CATALOG).write_text(json.dumps(entries), encoding="utf-8")
    command = ("python3", "-m", "phalanx.datasets.fetch", posixpath.join(shared, DIRECTORY), *names)
    return JobSpec(command=command, launcher="exec", processes=1, directory=directory, name="data-fetch")


def _write_program(directory: Path) -> None:
    """Copy the package `phalanx.datasets` alone, in an empty `phalanx`: it needs nothing else."""
    package = directory / "phalanx" / "datasets"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    for source in resources.files("phalanx.datasets").iterdir():
        if source.name.endswith(".py"):
            (package / source.name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")


def _entry(name: str) -> Mapping[str, Any]:
    if name in catalog():
        return catalog()[name]
    near = difflib.get_close_matches(name, catalog(), 1)
    meant = f"; did you mean '{near[0]}'?" if near else ""
    raise JobError(f"no data set '{name}'{meant}", f"There are {', '.join(catalog())}; `phalanx put` uploads your own.")
