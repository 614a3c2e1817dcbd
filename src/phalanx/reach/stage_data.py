"""Describe the job that copies S3 prefixes to the shared directory or nodes' own disks, with the rights of jobs."""

from __future__ import annotations

import difflib
import json
import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from phalanx.cluster.cluster_record import Cluster
from phalanx.errors import JobError
from phalanx.jobs.job_model import JobSpec
from phalanx.objects.staging import TASKS
from phalanx.reach.own_code import write_package
from phalanx.spec import spec_lustre
from phalanx.spec.spec_data import Place, places

DIRECTORY = "data"
"""Where staged prefixes are, relative to the shared directory or to PHALANX_SCRATCH."""


def named(cluster: Cluster, names: Sequence[str]) -> list[Place]:
    """Return these entries of the cluster's `data`, or all that are not linked. Raises JobError for any other name."""
    known = {place.name: place for place in places(cluster.spec.get("data"))}
    if not known:
        raise JobError(
            f"cluster {cluster.name} was created without `data`",
            "Name its S3 prefixes in phalanx.yaml before `phalanx up`.",
        )
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f"; did you mean '{near[0]}'?" if near else ""
            raise JobError(f"`data` has no entry '{name}'{meant}", f"It has {', '.join(known)}.")
    linked = [place.name for place in spec_lustre.linked(cluster.spec.get("lustre"), cluster.spec.get("data"))]
    if there := [name for name in names or known if name in linked and (names or len(linked) == len(known))]:
        raise JobError(
            f"{', '.join(there)}: linked to the file system, which imports the objects itself",
            f"The files are in {posixpath.join(cluster.shared, DIRECTORY)}.",
        )
    return [known[name] for name in names or known if name not in linked]


def stage_job(cluster: Cluster, wanted: Iterable[Place], endpoint: str, code: Path, scratch: bool = False) -> JobSpec:
    """Return the job that copies each of them to data/NAME; its code is written into `code`, which must not exist.

    With `scratch`, one process on each node copies them to the node's own disks.
    """
    tasks = [
        {
            "name": one.name,
            "bucket": one.bucket,
            "prefix": one.prefix,
            "region": cluster.region,
            "endpoint": endpoint,
            "directory": posixpath.join("" if scratch else cluster.shared, DIRECTORY, one.name),
        }
        for one in wanted
    ]
    write_package("objects", code, "node.sigv4")
    (code / TASKS).write_text(json.dumps(tasks), encoding="utf-8")
    command = ("python3", "-m", "phalanx.objects.staging")
    job = JobSpec(command=command, launcher="exec", directory=code, name="data-stage")
    return replace(job, per_node=1) if scratch else replace(job, processes=1)
