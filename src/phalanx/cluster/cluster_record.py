"""What this machine knows of a cluster: its record, which jobs use as a handle."""

from __future__ import annotations

import contextlib
import difflib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from phalanx.aws import tables
from phalanx.cluster.stack import require_roster
from phalanx.errors import ClusterError, NewerFormat, PhalanxError
from phalanx.node import validate
from phalanx.ssh.remote import Remote, close_all
from phalanx.state_files import cluster_directory, known, write_private

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws
    from phalanx.node.roster import Node, Roster

HEAD = "deeplearning-worker1"
"""The head's name in the roster and the hostfile. It is also `head` here, and `deeplearning-master` on every node."""
_HEAD_NAMES = ("head", HEAD, "deeplearning-master")
JOB_USER = "phalanx"
BOOT_LOGS = "boot-logs"
_ROSTER = "roster.json"
_SETTLES_BY = "settles-by"
FORMAT = 1
"""The number of the record's format."""


class Resizing(Protocol):
    """What changes the number of a cluster's machines where the head can't."""

    def resize(self, nodes: int, leaving: Sequence[Node], members: Sequence[Node]) -> Iterator[str]:
        """End the nodes that leave, or start more; yield what happens."""
        ...


@dataclass(frozen=True)
class Control:
    """The ways to a cluster's cloud. None relies on a node: a job there could answer anything.

    `repair` repairs what this machine knows of a cluster that ssh can't reach; True if another attempt may succeed.
    `core_group` returns the group of an adopted EMR cluster, and raises ClusterError if there is none.
    """

    connect: Callable[[Cluster], Aws]
    repair: Callable[[Cluster, ClusterError], bool]
    core_group: Callable[[Cluster], Resizing]


class UnknownNodeError(ClusterError):
    """No member of the cluster has this name."""

    code = "no-node"


@dataclass(frozen=True)
class Cluster:
    """A cluster as this machine knows it.

    `stack_id` is empty until there is a stack, `head_address` until the cluster is ready. A head without a public
    address has its instance's id there.
    """

    name: str
    cloud: str
    region: str
    stack_id: str = ""
    head_address: str = ""
    shared: str = ""
    slots: int = 1
    nodes: int = 0
    table: str = ""
    admin_user: str = ""
    accounts_separated: bool = True
    created_s: float = 0.0
    spec: Mapping[str, Any] = field(default_factory=dict)
    control: Control | None = field(default=None, compare=False, repr=False)

    @classmethod
    def load(cls, name: str | None = None) -> Cluster:
        """Load the named cluster, or the only one that this machine knows. Raises ClusterError, NewerFormat."""
        path = cluster_directory(name or _only_known()) / "cluster.json"
        try:
            record = json.loads(path.read_text())
            validate.require_format(record, FORMAT, f"cluster {path.parent.name}")
            return cls(**{key: value for key, value in record.items() if key != "format"})
        except FileNotFoundError:
            raise _unknown(path.parent.name) from None
        except validate.Newer as error:
            raise NewerFormat(str(error)) from None
        except (ValueError, TypeError, AttributeError) as error:
            raise ClusterError(
                f"{path} is damaged: {error}",
                "Run `phalanx down` in the directory of its phalanx.yaml; it needs no record.",
                code="damaged-record",
            ) from None

    @property
    def directory(self) -> Path:
        return cluster_directory(self.name)

    @property
    def ssh_config(self) -> Path:
        return self.directory / "ssh_config"

    @property
    def ready(self) -> bool:
        return bool(self.head_address)

    @property
    def by_session(self) -> bool:
        """Whether ssh reaches the head through AWS Systems Manager, by the id of its instance."""
        return self.head_address.startswith("i-")

    def aws(self) -> Aws:
        """Return the API of the cluster's cloud."""
        return self._connected().connect(self)

    def core_group(self) -> Resizing | None:
        """Return the group of an adopted EMR cluster, whose size no node may change; None for any other cluster."""
        return self._connected().core_group(self) if "adopted" in self.spec else None

    def save(self) -> Cluster:
        """Write the record atomically, and return the cluster."""
        own = {key: value for key, value in asdict(replace(self, control=None)).items() if key != "control"}
        record = json.dumps({"format": FORMAT, **own}, indent=1, default=str)
        write_private(self.directory / "cluster.json", record + "\n")
        return self

    def forget(self, keep_logs: bool = False) -> None:
        """Close the cluster's ssh connections and remove its files here; `keep_logs` keeps the boot logs."""
        close_all(self.ssh_config)
        logs = self.directory / BOOT_LOGS
        if not (keep_logs and logs.exists()):
            shutil.rmtree(self.directory, ignore_errors=True)
            return
        for path in self.directory.iterdir():
            if path != logs:
                path.unlink()

    def remote(self, node: str = "head", user: str = JOB_USER) -> Remote:
        """Return a node of this cluster, to be used as `user`. An open connection is reused: its node was verified."""
        self.require_ready()
        if node in _HEAD_NAMES:
            return self._head(user)
        remembered = self._remembered(node, user)
        if remembered is not None and remembered.connected():
            return remembered
        return self.remote_to(self._find(self.roster(), node), user)

    def remote_to(self, member: Node, user: str = JOB_USER) -> Remote:
        """Return a member of the roster, to be used as `user`. Workers have no public address: the way is the head."""
        if member.head:
            return self._head(user)
        options = (f"HostName={member.address}", f"HostKeyAlias={member.name}")
        return Remote(self.ssh_config, member.name, user, options, self._hook(), via=self._head(JOB_USER))

    def _head(self, user: str) -> Remote:
        return Remote(self.ssh_config, HEAD, user, repair=self._hook())

    def members(self, nodes: Sequence[str] = ()) -> list[Node]:
        """Return the members with these names (any of their names), or all members."""
        roster = self.roster()
        found = [self._find(roster, node) for node in nodes]
        return found or list(roster.nodes)

    def roster(self) -> Roster:
        """Read the roster from the cloud's table, so that no node decides where ssh connects to."""
        self.require_ready()
        roster = require_roster(self.aws(), self.table, self.name)
        with contextlib.suppress(OSError):  # it only saves the next command a call
            write_private(self.directory / _ROSTER, roster.to_json(), lasts=False)
        return roster

    def settle_by(self, command: str) -> None:
        """Have a new head run this command as the job user, to end or restart the jobs of the previous head.

        Each command is sent to the cloud once. If that fails, the jobs are settled when somebody lists them.
        """
        path = self.directory / _SETTLES_BY
        if self.control is None or (path.exists() and path.read_text() == command):
            return
        with contextlib.suppress(PhalanxError, OSError):
            tables.put(self.aws(), self.table, "settle", command={"S": command})
            write_private(path, command, lasts=False)

    def require_ready(self) -> None:
        """Raise ClusterError unless the cluster is ready."""
        if not self.ready:
            raise ClusterError(
                f"cluster {self.name} is not ready",
                "Run `phalanx up` to follow its creation.",
                code="cluster-not-ready",
            )

    def _connected(self) -> Control:
        assert self.control is not None, "a cluster needs `control` before it is used"
        return self.control

    def _hook(self) -> Callable[[ClusterError], bool] | None:
        control = self.control
        return (lambda error: control.repair(self, error)) if control else None

    def _remembered(self, node: str, user: str) -> Remote | None:
        """Return the node as it was when this machine last read the roster."""
        try:
            roster = validate.roster((self.directory / _ROSTER).read_text(), validate.NETWORKS)
            return self.remote_to(self._find(roster, node), user)
        except (OSError, ValueError, ClusterError):
            return None

    def _find(self, roster: Roster, node: str) -> Node:
        for member in roster.members:
            names = (member.name, member.name.removeprefix("deeplearning-"), member.instance_id, member.address)
            if node in names or (member.head and node in _HEAD_NAMES):
                return member
        names = ", ".join(member.name for member in roster.nodes)
        raise UnknownNodeError(f"no node '{node}' in cluster {self.name}", f"It has {names}.")


def _only_known() -> str:
    names = known()
    if len(names) == 1:
        return names[0]
    if not names:
        raise ClusterError("this machine knows no cluster", "Run `phalanx init`, then `phalanx up`.", code="no-cluster")
    raise ClusterError(
        f"which cluster? This machine knows {', '.join(names)}", "Choose one with -c NAME.", code="which-cluster"
    )


def _unknown(name: str) -> ClusterError:
    names = known()
    near = difflib.get_close_matches(name, names, 1)
    if near:
        return ClusterError(
            f"no cluster '{name}' is known here; did you mean '{near[0]}'?",
            "`phalanx up` makes one.",
            code="no-cluster",
        )
    listed = f"Known: {', '.join(names)}." if names else "`phalanx up` makes one."
    return ClusterError(f"no cluster '{name}' is known on this machine", listed, code="no-cluster")
