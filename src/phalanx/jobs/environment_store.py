"""The environments on a cluster's shared directory."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.jobs import toolbox
from phalanx.jobs.job import ClusterAccess
from phalanx.node.validate import truth
from phalanx.ssh import head_answers

_ENVIRONMENTS = ".phalanx/environments"
# Removing an environment deletes ten thousand files, each a round trip on a network file system.
_TIMEOUT_S = 600.0
_ALWAYS: dict[str, head_answers.Check] = {
    **dict.fromkeys(("name", "path"), head_answers.text),
    **dict.fromkeys(("complete", "in_use", "removed"), truth),
}
_OPTIONAL: dict[str, head_answers.Check] = {
    **dict.fromkeys(("digest", "python"), head_answers.text),
    "bytes": head_answers.whole,
    "used_at": head_answers.time_s,
}


@dataclass(frozen=True)
class MadeEnvironment:
    """An environment that was made, or only in part (not `complete`).

    `digest` is that of the Environment it was made from.
    """

    name: str
    path: str
    complete: bool
    in_use: bool
    removed: bool
    digest: str = ""
    python: str = ""
    bytes: int = 0
    used_at: float = 0.0

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> MadeEnvironment:
        """Build one from the head's answer. Raises InvalidAnswerError."""
        return cls(**{**head_answers.fields(record, _OPTIONAL), **head_answers.required(record, _ALWAYS)})


def made_environments(cluster: ClusterAccess, prune: bool = False) -> list[MadeEnvironment]:
    """Return all environments. With `prune`, first remove those that no job uses, and mark them as removed.

    Raises ClusterError.
    """
    root = f"{cluster.shared}/{_ENVIRONMENTS}"
    options = ["--prune"] if prune else []
    command = f"[ -d {shlex.quote(root)} ] || exit 0; {toolbox.command(cluster.shared, 'environments', root, *options)}"
    done = toolbox.run(cluster.remote(), cluster.shared, command, timeout_s=_TIMEOUT_S)
    return [MadeEnvironment.from_record(head_answers.parsed(line)) for line in done.stdout.splitlines()]
