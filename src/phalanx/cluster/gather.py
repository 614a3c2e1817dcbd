"""Runs one command on all nodes in parallel, and returns a verdict for each."""

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

# Each is an ssh process on this machine; more would only compete for its cores.
_MAX_PARALLEL = 32


@dataclass(frozen=True)
class Verdict:
    """The result on one node. `status` is None when the command did not complete; `error` then says why."""

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
        """Return plain data for --json; bytes that are not UTF-8 are replaced."""
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
    """Run a shell command on these nodes (default: all) in parallel; yield verdicts in the roster's order.

    `sudo` runs it as root, through the image's own user. A node that can't be reached gets a verdict, too. Raises
    ClusterError when the head can't be asked for the nodes.
    """
    cluster.require_ready()
    members = cluster.members(nodes)
    user = cluster.admin_user if sudo else JOB_USER
    full_command = f"sudo -n sh -c {shlex.quote(command)}" if sudo else command

    def run(member: Node) -> Verdict:
        return _run(cluster, member, user, full_command, timeout_s)

    with ThreadPoolExecutor(max_workers=min(_MAX_PARALLEL, len(members))) as pool:
        yield from pool.map(run, members)


def _run(cluster: Cluster, member: Node, user: str, command: str, timeout_s: float) -> Verdict:
    started_s = time.monotonic()
    try:
        done = cluster.remote_to(member, user).run(command, timeout_s=timeout_s, check=False)
    except ClusterError as error:
        return Verdict(member.name, None, b"", b"", time.monotonic() - started_s, error.message)
    return Verdict(member.name, done.status, done.stdout, done.stderr, time.monotonic() - started_s)
