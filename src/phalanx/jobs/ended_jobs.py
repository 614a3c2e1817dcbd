"""The jobs that are over, which take room on a cluster's shared directory until someone removes them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from phalanx.jobs import toolbox
from phalanx.jobs.job import JOBS, ClusterAccess
from phalanx.node.validate import truth
from phalanx.ssh import head_answers

# A job may have as many files as its code, and each is a round trip on a network file system.
_TIMEOUT_S = 3600.0
_MEASURED_WITHIN_S = 0.5
_LARGE_BYTES = 20 << 30
_LARGE_SHARE = 0.1
_CHECKS: dict[str, head_answers.Check] = {
    **dict.fromkeys(("id", "name", "state"), head_answers.text),
    "ended_at": head_answers.time_s,
    "bytes": head_answers.whole,
    "removed": truth,
}
_SPACE: dict[str, head_answers.Check] = {"bytes": head_answers.whole, "of_bytes": head_answers.whole}


@dataclass(frozen=True)
class EndedJob:
    """A job that is over: what its directory takes, and whether that was removed."""

    id: str
    name: str
    state: str
    ended_at: float
    bytes: int
    removed: bool


class Space(NamedTuple):
    """How much the jobs of a cluster take at least, and the size of the file system that they are on."""

    bytes: int
    of_bytes: int

    @property
    def is_large(self) -> bool:
        return self.bytes > min(_LARGE_BYTES, _LARGE_SHARE * self.of_bytes)


def ended_jobs(
    cluster: ClusterAccess, before: float, tags: Mapping[str, str] | None = None, remove: bool = False
) -> list[EndedJob]:
    """Return the jobs with these tags that ended before this time; with `remove`, remove their directories first.

    Checkpoints stay. Raises ClusterError, JobError.
    """
    options = ["--remove"] if remove else []
    answer = _run(cluster, _TIMEOUT_S, "prune", f"{before:.3f}", json.dumps(dict(tags or {})), *options)
    return [EndedJob(**head_answers.required(line, _CHECKS)) for line in answer]


def space(cluster: ClusterAccess) -> Space:
    """Return how much all jobs take, as far as the head counts in half a second. Raises ClusterError, JobError."""
    answer = _run(cluster, 30.0, "measure", f"{_MEASURED_WITHIN_S:g}")
    return Space(**head_answers.required(answer[-1], _SPACE)) if answer else Space(0, 0)


def _run(cluster: ClusterAccess, timeout_s: float, verb: str, *arguments: str) -> list[dict[str, Any]]:
    root = f"{cluster.shared}/{JOBS}"
    command = f"[ -d {shlex.quote(root)} ] || exit 0; {toolbox.command(cluster.shared, verb, root, *arguments)}"
    done = toolbox.run(cluster.remote(), cluster.shared, command, timeout_s=timeout_s)
    # A login script may have written other lines.
    return [head_answers.parsed(line) for line in done.stdout.splitlines() if line.startswith(b'{"')]
