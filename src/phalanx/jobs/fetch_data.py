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
from phalanx.jobs.own_code import write_package

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
            raise JobError(
                f"--from {source} is not the URL of a directory",
                "Give one as in https://mirror/mnist/.",
                code="bad-url",
            )
        entries = {name: {**entry, "sources": [source]} for name, entry in entries.items()}
    write_package("datasets", directory)
    (directory / CATALOG).write_text(json.dumps(entries), encoding="utf-8")
    command = ("python3", "-m", "phalanx.datasets.fetch", posixpath.join(shared, DIRECTORY), *names)
    return JobSpec(command=command, launcher="exec", processes=1, directory=directory, name="data-fetch")


def _entry(name: str) -> Mapping[str, Any]:
    if name in catalog():
        return catalog()[name]
    near = difflib.get_close_matches(name, catalog(), 1)
    meant = f"; did you mean '{near[0]}'?" if near else ""
    raise JobError(
        f"no data set '{name}'{meant}",
        f"There are {', '.join(catalog())}; `phalanx put` uploads your own.",
        code="no-data-set",
    )
