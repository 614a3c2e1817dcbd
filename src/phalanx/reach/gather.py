"""One command on all nodes at once, and a verdict for each."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from phalanx.cluster.cluster_record import JOB_USER, Cluster
from phalanx.errors import ClusterError
from phalanx.node.roster import Node

# Each is an ssh process of this machine; more would only wait for its cores.
_MOST_AT_ONCE = 32


@dataclass(frozen=True)
class Verdict:
    """How the command went on one node. `status` is None when it never ran to its end; `error` then says why."""

    node: str
    status: int | None
    stdout: bytes
    stderr: bytes
    took_s: float
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.status == 0

    def to_json(self) -> dict[str, Any]:
        """Plain data, for --json; output that is no text is shown as far as it is."""
        return {
            "node": self.node,
            "ok": self.ok,
            "status": self.status,
            "stdout": self.stdout.decode(errors="replace"),
            "stderr": self.stderr.decode(errors="replace"),
            "took_s": round(self.took_s, 3),
            "error": self.error,
        }


def gather(
    cluster: Cluster, command: str, *, nodes: Sequence[str] = (), sudo: bool = False, timeout_s: float = 3600.0
) -> Iterator[Verdict]:
    """Run a shell command on these nodes (default: all) at once; verdicts come in the roster's order.

    `sudo`: as root, through the image's own user. A node that can't be reached has its verdict, too. Raises
    ClusterError when the head can't be asked who there is.
    """
    cluster.require_ready()
    members = cluster.members(nodes)
    user = cluster.admin_user if sudo else JOB_USER
    words = f"sudo -n sh -c {shlex.quote(command)}" if sudo else command

    def ask(member: Node) -> Verdict:
        return _ask(cluster, member, user, words, timeout_s)

    with ThreadPoolExecutor(max_workers=min(_MOST_AT_ONCE, len(members))) as pool:
        yield from pool.map(ask, members)


def _ask(cluster: Cluster, member: Node, user: str, command: str, timeout_s: float) -> Verdict:
    started_s = time.monotonic()
    try:
        done = cluster.remote_to(member, user).run(command, timeout_s=timeout_s, check=False)
    except ClusterError as error:
        return Verdict(member.name, None, b"", b"", time.monotonic() - started_s, error.message)
    return Verdict(member.name, done.status, done.stdout, done.stderr, time.monotonic() - started_s)
