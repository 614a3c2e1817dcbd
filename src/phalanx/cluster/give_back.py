"""Give machines back that phalanx did not make: remove from an adopted cluster's nodes what the agent made there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.stack import read_roster
from phalanx.errors import PhalanxError
from phalanx.ssh.remote import Remote

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_WITHIN_S = 120.0


@dataclass(frozen=True)
class Released:
    """A node is as it was before, or `problem` says why that is not sure."""

    node: str
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.node} was not cleaned up: {self.problem}" if self.problem else f"{self.node} is as it was before"


def release(cloud: Aws, cluster: Cluster) -> Iterator[Released]:
    """Release all nodes, the head last: the way to the others leads through it."""
    running = cloud.machines.running(cluster.name)
    if not cluster.ready or running is None or running.ended:
        return
    roster = read_roster(cloud, cluster.table)
    for member in sorted(roster.members if roster else (), key=lambda node: node.head):
        yield release_node(cluster.remote_to(member, cluster.admin_user), member.name)


def release_node(remote: Remote, name: str) -> Released:
    """Release a node that can be reached."""
    source = (resources.files("phalanx.node") / "release.py").read_bytes()
    try:
        remote.run("sudo -n /usr/bin/python3 -IS -", input=source, timeout_s=_WITHIN_S)
    except PhalanxError as error:
        return Released(name, error.message)
    return Released(name)
