"""What this machine keeps of each cluster: its key, its ssh_config, its record; and the handle that jobs work with."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from phalanx.errors import ClusterError, PhalanxError
from phalanx.ssh.remote import Remote, close_all

if TYPE_CHECKING:
    from phalanx.clouds.protocol import SshRoute
    from phalanx.node.roster import Node, Roster

HEAD = "deeplearning-worker1"
"""As the roster and the hostfile name it. Its other names: `head` here, `deeplearning-master` on every node."""
_HEAD_NAMES = ("head", HEAD, "deeplearning-master")
JOB_USER = "phalanx"
BOOT_LOGS = "boot-logs"
_ROSTER = "roster.json"
_SETTLES_BY = "settles-by"
_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9-]{0,127}$")


def state_directory() -> Path:
    """Where this machine keeps clusters and the local cloud: $PHALANX_STATE_DIR, else below $XDG_STATE_HOME."""
    chosen = os.environ.get("PHALANX_STATE_DIR")
    if chosen:
        return Path(chosen).absolute()
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "phalanx"


def cluster_directory(name: str) -> Path:
    """The directory of one cluster; a name that could leave it is refused."""
    if not _NAME.match(name):
        raise ClusterError(f"'{name}' can't be the name of a cluster", "Letters, digits and dashes; a letter first.")
    return state_directory() / "clusters" / name


def known() -> list[str]:
    """Names of the clusters that this machine has a record of."""
    return sorted(path.parent.name for path in (state_directory() / "clusters").glob("*/cluster.json"))


class ControlPlane(Protocol):
    """What a cluster in use asks of its cloud's API, and never of a node: a job there could answer what it likes."""

    def roster(self, cluster: Cluster) -> Roster:
        """The membership now, validated. Raises CloudError, ClusterError."""
        ...

    def settle_by(self, cluster: Cluster, command: str) -> None:
        """Keep the command where a new head finds it and no node but a head can write. Raises PhalanxError."""
        ...

    def mend(self, cluster: Cluster, error: ClusterError) -> bool:
        """Repair what this machine knows of a cluster that ssh can't reach; True when another try may work."""
        ...


class UnknownNodeError(ClusterError):
    """No member of the cluster has this name."""


@dataclass(frozen=True)
class Cluster:
    """A cluster as this machine knows it: `stack_id` is empty before its stack is, `head_address` until it is ready."""

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
    worker_host: str = "address"
    worker_options: tuple[str, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)
    control: ControlPlane | None = field(default=None, compare=False, repr=False)

    @classmethod
    def load(cls, name: str | None = None) -> Cluster:
        """The named cluster, or the only one that this machine knows; raises ClusterError."""
        path = cluster_directory(name or _only_known()) / "cluster.json"
        try:
            record = json.loads(path.read_text())
            return cls(**{**record, "worker_options": tuple(record.get("worker_options", ()))})
        except FileNotFoundError:
            raise _unknown(path.parent.name) from None
        except (ValueError, TypeError, AttributeError) as error:
            raise ClusterError(
                f"{path} is damaged: {error}", "`phalanx down` beside the cluster's phalanx.yaml needs no record."
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

    def save(self) -> Cluster:
        """Write the record (written beside and renamed, so that nobody reads half of it)."""
        record = {key: value for key, value in asdict(replace(self, control=None)).items() if key != "control"}
        write_private(self.directory / "cluster.json", json.dumps(record, indent=1, default=str) + "\n")
        return self

    def forget(self, keep_logs: bool = False) -> None:
        """Close its ssh connections and remove what this machine keeps of it; `keep_logs`: all but the boot logs."""
        close_all(self.ssh_config)
        logs = self.directory / BOOT_LOGS
        if not (keep_logs and logs.exists()):
            import shutil  # here, and the like below, because `run` has no use for it

            shutil.rmtree(self.directory, ignore_errors=True)
            return
        for path in self.directory.iterdir():
            if path != logs:
                path.unlink()

    def remote(self, node: str = "head", user: str = JOB_USER) -> Remote:
        """A node of this cluster as `user`. A connection that stands leads to the node that it was verified to be."""
        self.require_ready()
        if node in _HEAD_NAMES:
            return Remote(self.ssh_config, HEAD, user, mend=self._hook())
        remembered = self._remembered(node, user)
        if remembered is not None and remembered.connected():
            return remembered
        return self.remote_to(self._find(self.roster(), node), user)

    def remote_to(self, member: Node, user: str = JOB_USER) -> Remote:
        """A member of the roster as `user`."""
        if member.head:
            return Remote(self.ssh_config, HEAD, user, mend=self._hook())
        host = getattr(member, self.worker_host)
        options = (f"HostName={host}", f"HostKeyAlias={member.name}", *self.worker_options)
        return Remote(self.ssh_config, member.name, user, options, mend=self._hook())

    def members(self, nodes: Sequence[str] = ()) -> list[Node]:
        """These nodes as the roster has them, each by any of its names; all of them without names."""
        roster = self.roster()
        found = [self._find(roster, node) for node in nodes]
        return found or list(roster.nodes)

    def roster(self) -> Roster:
        """The membership now, as the cloud's table has it: no node has a say in where ssh goes."""
        self.require_ready()
        assert self.control is not None, "whoever loads a cluster to use it gives it its cloud"
        roster = self.control.roster(self)
        write_private(self.directory / _ROSTER, roster.to_json())
        return roster

    def settle_by(self, command: str) -> None:
        """Have a new head run this as the job user: it ends or restarts the jobs of the head before.

        Asks the cloud once for each command. Where that fails the jobs wait for whoever lists them.
        """
        path = self.directory / _SETTLES_BY
        if self.control is None or (path.exists() and path.read_text() == command):
            return
        with contextlib.suppress(PhalanxError):
            self.control.settle_by(self, command)
            write_private(path, command)

    def require_ready(self) -> None:
        """Raise ClusterError unless its `up` has come to its end."""
        if not self.ready:
            raise ClusterError(f"cluster {self.name} is not ready", "`phalanx up` follows its creation.")

    def _hook(self) -> Callable[[ClusterError], bool] | None:
        control = self.control
        return (lambda error: control.mend(self, error)) if control else None

    def _remembered(self, node: str, user: str) -> Remote | None:
        """The node as it was when this machine last read the roster."""
        from phalanx.node import validate

        try:
            roster = validate.roster((self.directory / _ROSTER).read_text(), validate.NETWORK)
            return self.remote_to(self._find(roster, node), user)
        except (OSError, ValueError, ClusterError):
            return None

    def _find(self, roster: Roster, node: str) -> Node:
        for member in roster.nodes:
            names = (member.name, member.name.removeprefix("deeplearning-"), member.instance_id, member.address)
            if node in names or (member.head and node in _HEAD_NAMES):
                return member
        names = ", ".join(member.name for member in roster.nodes)
        raise UnknownNodeError(f"no node '{node}' in cluster {self.name}", f"It has {names}.")


def make_key(name: str) -> str:
    """The public half of this machine's own key for a cluster; made at first use (ed25519, no passphrase)."""
    private = cluster_directory(name) / "id_ed25519"
    _refuse_what_ssh_misreads(state_directory())
    private.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    private.parent.chmod(0o700)
    if not private.exists():
        _generate(private, comment=f"phalanx-{name}")
    return private.with_suffix(".pub").read_text().strip()


def public_key(name: str) -> str:
    """The public half of this machine's key for a cluster, empty when it has none."""
    path = cluster_directory(name) / "id_ed25519.pub"
    return path.read_text().strip() if path.exists() else ""


def write_ssh_config(cluster: Cluster, authority: str, route: SshRoute) -> None:
    """What `ssh` needs for this cluster: one authority that certifies every node, one key of ours, how to get there."""
    write_private(cluster.directory / "known_hosts", f"@cert-authority * {authority}\n")
    write_private(cluster.ssh_config, _ssh_config_text(cluster, route))


def write_authority(cluster: Cluster, authority: str) -> bool:
    """Trust the authority that the cluster has now; False when that is the one already trusted."""
    path, line = cluster.directory / "known_hosts", f"@cert-authority * {authority}\n"
    if path.exists() and path.read_text() == line:
        return False
    write_private(path, line)
    return True


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.touch(mode=0o600)
    beside.write_text(text)
    beside.replace(path)


def _ssh_config_text(cluster: Cluster, route: SshRoute) -> str:
    lines = [
        f"Host {HEAD}",
        f"    HostName {cluster.head_address}",
        f"    HostKeyAlias {HEAD}",
        "Host *",
        *(f"    {option}" for option in route.options),
        f"    User {JOB_USER}",
        f"    IdentityFile {_quoted(cluster.directory / 'id_ed25519')}",
        "    IdentitiesOnly yes",
        f"    UserKnownHostsFile {_quoted(cluster.directory / 'known_hosts')}",
        "    GlobalKnownHostsFile /dev/null",
        "    StrictHostKeyChecking yes",
        "    UpdateHostKeys no",
        # A job on the head runs as the user who logs in there, and could use both.
        "    ForwardAgent no",
        "    ForwardX11 no",
        "    ControlMaster auto",
        "    ControlPersist 10m",
        "    ConnectTimeout 15",
        "    ServerAliveInterval 5",
        "    ServerAliveCountMax 3",
        "    LogLevel ERROR",
    ]
    return "\n".join(lines) + "\n"


def _quoted(path: Path) -> str:
    """A path as ssh_config takes it: in quotes, with its percent signs doubled (they introduce tokens)."""
    return '"' + str(path).replace("%", "%%") + '"'


def _refuse_what_ssh_misreads(path: Path) -> None:
    """ssh_config has no way to write these in a path that all versions of OpenSSH read alike."""
    wrong = re.search(r'["$\\\x00-\x1f]', str(path))
    if wrong:
        raise ClusterError(
            f"ssh can't use keys below {path}: its name holds {wrong[0]!r}", "PHALANX_STATE_DIR names another place."
        )


def _generate(private: Path, comment: str) -> None:
    """Make the key under another name and link it into place: of two `up` at once, one key wins and both use it."""
    beside = private.with_name(f".id_ed25519.{os.getpid()}")
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(beside)]
    try:
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    except FileNotFoundError as error:
        raise ClusterError(
            "the command `ssh-keygen` is not installed", "Debian, Ubuntu: apt-get install openssh-client"
        ) from error
    beside_public = Path(f"{beside}.pub")
    try:
        private.with_suffix(".pub").hardlink_to(beside_public)
        private.hardlink_to(beside)
    except FileExistsError:
        pass
    finally:
        beside.unlink()
        beside_public.unlink()


def _only_known() -> str:
    names = known()
    if len(names) == 1:
        return names[0]
    if not names:
        raise ClusterError("this machine knows no cluster", "`phalanx init` and `phalanx up` make one.")
    raise ClusterError(f"which cluster? This machine knows {', '.join(names)}", "Choose one with -c NAME.")


def _unknown(name: str) -> ClusterError:
    names = known()
    import difflib

    near = difflib.get_close_matches(name, names, 1)
    if near:
        return ClusterError(f"no cluster '{name}' is known here; did you mean '{near[0]}'?", "`phalanx up` makes one.")
    listed = f"Known: {', '.join(names)}." if names else "`phalanx up` makes one."
    return ClusterError(f"no cluster '{name}' is known on this machine", listed)
