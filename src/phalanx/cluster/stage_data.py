"""Describe the job that copies S3 prefixes to the shared directory or nodes' own disks, with the rights of jobs."""

from __future__ import annotations

import difflib
import json
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from phalanx.cluster.cluster_record import Cluster
from phalanx.errors import JobError
from phalanx.jobs.job_model import JobSpec
from phalanx.jobs.own_code import write_package
from phalanx.jobs.transfer import shared_path
from phalanx.objects.staging import TASKS
from phalanx.spec import spec_lustre
from phalanx.spec.spec_data import Place, places

DIRECTORY = "data"
"""Where staged prefixes are, relative to the shared directory or to PHALANX_SCRATCH."""


def named(cluster: Cluster, names: Sequence[str], scratch: bool = False) -> list[Place]:
    """Return these entries of the cluster's `data`, or all. Raises JobError for any other name.

    What is linked to the file system is there already, but not on nodes' own disks (`scratch`).
    """
    known = {place.name: place for place in places(cluster.spec.get("data"))}
    if not known:
        raise JobError(
            f"cluster {cluster.name} was created without `data`",
            "Name its S3 prefixes in phalanx.yaml before `phalanx up`.",
            code="no-data-entry",
        )
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f"; did you mean '{near[0]}'?" if near else ""
            raise JobError(f"`data` has no entry '{name}'{meant}", f"It has {', '.join(known)}.", code="no-data-entry")
    links = [] if scratch else spec_lustre.linked(cluster.spec.get("lustre"), cluster.spec.get("data"))
    linked = [place.name for place in links]
    if there := [name for name in names or known if name in linked and (names or len(linked) == len(known))]:
        raise JobError(
            f"{', '.join(there)}: linked to the file system, which imports the objects itself",
            f"The files are in {posixpath.join(cluster.shared, DIRECTORY)}.",
            code="data-linked",
        )
    return [known[name] for name in names or known if name not in linked]


def stage_job(cluster: Cluster, wanted: Iterable[Place], endpoint: str, code: Path, scratch: bool = False) -> JobSpec:
    """Return the job that copies each of them to data/NAME; its code is written into `code`, which must not exist.

    With `scratch`, one process on each node copies them to the node's own disks.
    """
    root = posixpath.join("" if scratch else cluster.shared, DIRECTORY)
    job = _job(cluster, {one: posixpath.join(root, one.name) for one in wanted}, endpoint, code)
    return replace(job, processes=None, per_node=1) if scratch else job


def put_job(cluster: Cluster, url: str, destination: str, endpoint: str, code: Path) -> JobSpec:
    """Return the job that copies what is at the URL into a directory below the shared one.

    Raises JobError for a URL that no entry of `data` contains, and TransferError for another directory.
    """
    directory = shared_path(cluster, destination).rstrip("/")
    return _job(cluster, {within(places(cluster.spec.get("data")), url): directory}, endpoint, code)


def within(known: Iterable[Place], url: str) -> Place:
    """Return what is at the URL as a part of an entry of `data`. Raises JobError if it is in none."""
    bucket, _, key = url.removeprefix("s3://").partition("/")
    for place in known:
        if place.bucket == bucket and f"{key}/".startswith(place.prefix):
            # Jobs may not list the entry's name without its slash.
            return replace(place, name=url, prefix=place.prefix if len(key) < len(place.prefix) else key)
    raise JobError(
        f"jobs of this cluster may not read {url}",
        "Name it in `data` of phalanx.yaml, then `phalanx up`; or `phalanx data get` it, and `phalanx put` the files.",
        code="data-denied",
    )


def _job(cluster: Cluster, directories: Mapping[Place, str], endpoint: str, code: Path) -> JobSpec:
    tasks = [
        {
            "name": one.name,
            "bucket": one.bucket,
            "prefix": one.prefix,
            "region": cluster.region,
            "endpoint": endpoint,
            "directory": directory,
        }
        for one, directory in directories.items()
    ]
    write_package("objects", code, "node.sigv4")
    (code / TASKS).write_text(json.dumps(tasks), encoding="utf-8")
    command = ("python3", "-m", "phalanx.objects.staging")
    return JobSpec(command=command, launcher="exec", processes=1, directory=code, name="data-stage")
