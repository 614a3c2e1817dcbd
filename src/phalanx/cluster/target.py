"""The cluster that a file describes: how far `up` has come with it, and how one that is there differs from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from phalanx.aws.model import StackState
from phalanx.cluster import keys
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.stack import Stack, read_roster
from phalanx.cluster.update import Settings, described, needs
from phalanx.errors import ClusterError
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_key import Needs
from phalanx.spec.spec_storage import EFS

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws


@dataclass
class Target:
    """The cluster that `up` works towards."""

    cloud: Aws
    spec: ClusterSpec
    new_image: bool = False
    """Whether the nodes' image may be another one than they have."""
    chosen: ClusterSpec = field(init=False)
    """The spec with the type of the machines that are there."""
    stack: Stack | None = None
    """The stack that is created or updated."""
    may_be_requested: bool = False
    """From just before the stack is requested."""
    was_there: bool = False
    """Whether there has been a stack, so that somebody has deleted it if there is none."""

    def __post_init__(self) -> None:
        self.chosen = self.spec

    def choose(self, instance_type: str) -> None:
        self.chosen = replace(self.spec, type=instance_type)

    def record(self, stack_id: str = "") -> Cluster:
        return Cluster(self.spec.name, self.cloud.name, self.cloud.region, stack_id, spec=self.settings())

    def settings(self) -> dict[str, object]:
        # As the record has them, for comparison: JSON has lists and no tuples.
        return json.loads(json.dumps(asdict(self.chosen)))

    def changes(self, found: StackState) -> Settings:
        """Return the settings that differ between the cluster and the file: (before, now) by key."""
        before = recorded(found.name)
        if before.get("type") in self.spec.types:
            self.choose(str(before["type"]))
        wanted = self.settings()
        # A record that `adopt` wrote has only the settings that the stack's parameters show.
        changes: dict[str, tuple[object, object]] = {
            key: (value, wanted[key])
            for key, value in before.items()
            if key in wanted and needs(key) is not Needs.NOTHING and value != wanted[key]
        }
        if "nodes" in changes and self._requested_nodes(found.name) == self.spec.nodes:
            del changes["nodes"]
        if {one or EFS for one in changes.get("storage", ())} == {EFS}:
            del changes["storage"]
        return changes

    def refuse_changes(self, found: StackState) -> None:
        """Raise ClusterError unless an existing stack has the requested settings."""
        changes = self.changes(found)
        if changes:
            hint = "`phalanx up` shows what would change, and asks."
            if changes.keys() == {"nodes"}:
                hint = f"Run `phalanx scale {self.spec.nodes}` to change the number of nodes."
            raise ClusterError(
                f"cluster {found.name} exists with other settings: {described(changes)}", hint, code="settings-differ"
            )

    def _requested_nodes(self, name: str) -> int | None:
        """Return the number of nodes that `phalanx scale` last requested; the file may have been changed to it."""
        table = Cluster.load(name).table
        roster = read_roster(self.cloud, table) if table else None
        return roster.requested if roster else None


def recorded(name: str) -> Mapping[str, object]:
    """Return the settings in this machine's record of a cluster; none without a record. Raises NewerFormat."""
    try:
        return Cluster.load(name).spec
    except ClusterError:
        return {}


def require_key(found: StackState) -> None:
    """Raise ClusterError unless an existing stack has this machine's key."""
    mine = keys.public(found.name)
    theirs = found.parameters.get("SshPublicKey", "")
    if not mine or (theirs and theirs.split()[:2] != mine.split()[:2]):
        raise ClusterError(
            f"cluster {found.name} exists, but was created with another machine's key",
            f"Use the machine that ran `phalanx up`, or copy its key here and run `phalanx adopt {found.name} -i KEY`.",
            code="other-key",
        )
