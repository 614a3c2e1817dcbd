"""What this machine stores of each cluster: its key, its ssh_config and its record, which jobs use as a handle."""

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
from phalanx.node import files
from phalanx.ssh.remote import Remote, close_all

if TYPE_CHECKING:
    from phalanx.aws.protocol import SshRoute
    from phalanx.node.roster import Node, Roster

HEAD = "deeplearning-worker1"
"""The head's name in the roster and the hostfile. It is also `head` here, and `deeplearning-master` on every node."""
_HEAD_NAMES = ("head", HEAD, "deeplearning-master")
JOB_USER = "phalanx"
BOOT_LOGS = "boot-logs"
_ROSTER = "roster.json"
_SETTLES_BY = "settles-by"
_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9-]{0,127}$")


def state_directory() -> Path:
    """Return where clusters and the local cloud are stored: $PHALANX_STATE_DIR, or below $XDG_STATE_HOME."""
    chosen = os.environ.get("PHALANX_STATE_DIR")
    if chosen:
        return Path(chosen).absolute()
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "phalanx"


def cluster_directory(name: str) -> Path:
    """Return the directory of a cluster. Raises ClusterError for a name that could lead out of it."""
    if not _NAME.match(name):
        raise ClusterError(
            f"'{name}' can't be the name of a cluster",
            "Use letters, digits and dashes; begin with a letter.",
        )
    return state_directory() / "clusters" / name


def known() -> list[str]:
    """Return the names of the clusters that this machine has a record of."""
    return sorted(path.parent.name for path in (state_directory() / "clusters").glob("*/cluster.json"))


class ControlPlane(Protocol):
    """What a cluster needs of its cloud's API. It never relies on a node: a job there could answer anything."""

    def roster(self, cluster: Cluster) -> Roster:
        """Return the current roster, validated. Raises CloudError, ClusterError."""
        ...

    def settle_by(self, cluster: Cluster, command: str) -> None:
        """Store the command where a new head finds it and only a head can write. Raises PhalanxError."""
        ...

    def repair(self, cluster: Cluster, error: ClusterError) -> bool:
        """Repair what this machine knows of a cluster that ssh can't reach; True if another attempt may succeed."""
        ...


class UnknownNodeError(ClusterError):
    """No member of the cluster has this name."""


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
    control: ControlPlane | None = field(default=None, compare=False, repr=False)

    @classmethod
    def load(cls, name: str | None = None) -> Cluster:
        """Load the named cluster, or the only one that this machine knows. Raises ClusterError."""
        path = cluster_directory(name or _only_known()) / "cluster.json"
        try:
            record = json.loads(path.read_text())
            for name in ("worker_host", "worker_options"):
                record.pop(name, None)  # of earlier versions
            return cls(**record)
        except FileNotFoundError:
            raise _unknown(path.parent.name) from None
        except (ValueError, TypeError, AttributeError) as error:
            raise ClusterError(
                f"{path} is damaged: {error}",
                "Run `phalanx down` in the directory of its phalanx.yaml; it needs no record.",
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

    def save(self) -> Cluster:
        """Write the record atomically, and return the cluster."""
        record = {key: value for key, value in asdict(replace(self, control=None)).items() if key != "control"}
        write_private(self.directory / "cluster.json", json.dumps(record, indent=1, default=str) + "\n")
        return self

    def forget(self, keep_logs: bool = False) -> None:
        """Close the cluster's ssh connections and remove its files here; `keep_logs` keeps the boot logs."""
        close_all(self.ssh_config)
        logs = self.directory / BOOT_LOGS
        if not (keep_logs and logs.exists()):
            import shutil  # here, as the imports below, because `run` does not need it

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
        assert self.control is not None, "a cluster needs `control` before it is used"
        roster = self.control.roster(self)
        write_private(self.directory / _ROSTER, roster.to_json(), lasts=False)
        return roster

    def settle_by(self, command: str) -> None:
        """Have a new head run this command as the job user, to end or restart the jobs of the previous head.

        Each command is sent to the cloud once. If that fails, the jobs are settled when somebody lists them.
        """
        path = self.directory / _SETTLES_BY
        if self.control is None or (path.exists() and path.read_text() == command):
            return
        with contextlib.suppress(PhalanxError):
            self.control.settle_by(self, command)
            write_private(path, command, lasts=False)

    def require_ready(self) -> None:
        """Raise ClusterError unless the cluster is ready."""
        if not self.ready:
            raise ClusterError(f"cluster {self.name} is not ready", "Run `phalanx up` to follow its creation.")

    def _hook(self) -> Callable[[ClusterError], bool] | None:
        control = self.control
        return (lambda error: control.repair(self, error)) if control else None

    def _remembered(self, node: str, user: str) -> Remote | None:
        """Return the node as it was when this machine last read the roster."""
        from phalanx.node import validate

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


def make_key(name: str) -> str:
    """Return the public half of this machine's key for a cluster; create it if needed (ed25519, no passphrase)."""
    private = cluster_directory(name) / "id_ed25519"
    _require_readable_by_ssh(state_directory())
    make_directory(private.parent)
    private.parent.chmod(0o700)
    if private.exists() and not private.stat().st_size:
        # An earlier version left it empty after a power failure.
        private.with_suffix(".pub").unlink(missing_ok=True)
        private.unlink()
    if not private.exists():
        _generate(private, comment=f"phalanx-{name}")
    if not public_key(name):
        found = _public_half(private)
        if not found:
            raise ClusterError(
                f"ssh-keygen can't read {private}: it has a passphrase, or is damaged",
                f"Write its public half to {private}.pub, or delete a key without use, and run `phalanx up` again.",
            )
        write_private(private.with_suffix(".pub"), found)
    return public_key(name)


def take_key(name: str, private: Path, public: str) -> bool:
    """Copy an existing private key for a cluster, if it has no passphrase and `public` is its public half."""
    found = _public_half(private)
    if not found or found.split()[:2] != public.split()[:2]:
        return False
    _require_readable_by_ssh(state_directory())
    mine = cluster_directory(name) / "id_ed25519"
    write_private(mine, private.read_text())
    write_private(mine.with_suffix(".pub"), public + "\n")
    return True


def _public_half(private: Path) -> str:
    """Return the public half of a private key without a passphrase; "" of any other file."""
    derive = ["ssh-keygen", "-y", "-P", "", "-f", str(private)]
    ended = subprocess.run(derive, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)
    return ended.stdout


def public_key(name: str) -> str:
    """Return the public half of this machine's key for a cluster; empty if it has none."""
    path = cluster_directory(name) / "id_ed25519.pub"
    return path.read_text().strip() if path.exists() else ""


def write_ssh_config(cluster: Cluster, authority: str, route: SshRoute) -> None:
    """Write what `ssh` needs: the authority that certifies the nodes, this machine's key, and the route."""
    write_private(cluster.directory / "known_hosts", f"@cert-authority * {authority}\n")
    write_private(cluster.ssh_config, _ssh_config_text(cluster, route))


def write_authority(cluster: Cluster, authority: str) -> bool:
    """Trust the cluster's current authority; return False if it is already trusted."""
    path, line = cluster.directory / "known_hosts", f"@cert-authority * {authority}\n"
    if path.exists() and path.read_text() == line:
        return False
    write_private(path, line)
    return True


def write_private(path: Path, text: str, lasts: bool = True) -> None:
    """Write a file atomically that only this user can read; what `lasts` is there after a power failure."""
    make_directory(path.parent)
    if not files.write(str(path), text, 0o600, is_synced=lasts):
        path.chmod(0o600)
    elif lasts:
        files.sync(str(path.parent))


def make_directory(path: Path) -> None:
    """Make a directory that only this user can read, and those above it; each is there after a power failure."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        files.sync(str(path.parent))


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
        # A job on the head runs as the same user as the login, and could use both.
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
    """Quote a path for ssh_config: its percent signs, which introduce tokens, are doubled."""
    return '"' + str(path).replace("%", "%%") + '"'


def _require_readable_by_ssh(path: Path) -> None:
    """Raise ClusterError for characters that not all versions of OpenSSH read alike in a path."""
    wrong = re.search(r'["$\\\x00-\x1f]', str(path))
    if wrong:
        raise ClusterError(
            f"ssh can't use keys below {path}: its path contains {wrong[0]!r}",
            "Set PHALANX_STATE_DIR to another directory.",
        )


def _generate(private: Path, comment: str) -> None:
    """Generate a private key under another name and link it into place: two concurrent `up` use the same key.

    After a power failure it is there as a whole, or not at all.
    """
    beside = private.with_name(f".id_ed25519.{os.getpid()}")
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(beside)]
    try:
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    except FileNotFoundError as error:
        raise ClusterError(
            "the command `ssh-keygen` is not installed", "Debian, Ubuntu: apt-get install openssh-client"
        ) from error
    try:
        files.sync(str(beside))
        private.hardlink_to(beside)
    except FileExistsError:
        pass
    finally:
        beside.unlink()
        Path(f"{beside}.pub").unlink()
    files.sync(str(private.parent))


def _only_known() -> str:
    names = known()
    if len(names) == 1:
        return names[0]
    if not names:
        raise ClusterError("this machine knows no cluster", "Run `phalanx init`, then `phalanx up`.")
    raise ClusterError(f"which cluster? This machine knows {', '.join(names)}", "Choose one with -c NAME.")


def _unknown(name: str) -> ClusterError:
    names = known()
    import difflib

    near = difflib.get_close_matches(name, names, 1)
    if near:
        return ClusterError(f"no cluster '{name}' is known here; did you mean '{near[0]}'?", "`phalanx up` makes one.")
    listed = f"Known: {', '.join(names)}." if names else "`phalanx up` makes one."
    return ClusterError(f"no cluster '{name}' is known on this machine", listed)
