"""How ssh reaches a cluster's nodes: for phalanx, and in the user's own configuration for ssh, scp and editors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.cluster import keys
from phalanx.cluster.cluster_record import HEAD, JOB_USER, Cluster
from phalanx.errors import ClusterError
from phalanx.node import files
from phalanx.node.workers_group import worker_numbers
from phalanx.state_files import state_directory, write_private

HOSTS = "ssh_hosts"
# Only for phalanx, which names the socket of each shared connection on ssh's command line.
_LEFT_OUT = ("ControlMaster", "ControlPersist", "LogLevel")


def write(cluster: Cluster, authority: str, route: Sequence[str]) -> None:
    """Write what `ssh` needs: the authority that certifies the nodes, this machine's key, and the route."""
    write_private(cluster.directory / "known_hosts", f"@cert-authority * {authority}\n")
    write_private(cluster.ssh_config, _text(cluster, route))


def write_authority(cluster: Cluster, authority: str) -> bool:
    """Trust the cluster's current authority; return False if it is already trusted."""
    path, line = cluster.directory / "known_hosts", f"@cert-authority * {authority}\n"
    if path.exists() and path.read_text() == line:
        return False
    write_private(path, line)
    return True


def _text(cluster: Cluster, route: Sequence[str]) -> str:
    lines = [
        f"Host {HEAD}",
        f"    HostName {cluster.head_address}",
        f"    HostKeyAlias {HEAD}",
        "Host *",
        *(f"    {option}" for option in route),
        f"    User {JOB_USER}",
        f"    IdentityFile {_quoted(keys.path(cluster.name))}",
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
    return joined(lines)


def joined(lines: Iterable[str]) -> str:
    """Return the lines as a text for ssh. Raises ClusterError for one that ssh would read as several."""
    found = list(lines)
    for line in found:
        if not line.isprintable():
            raise ClusterError(
                f"ssh's settings would have the line {line!r}", "Ask who made this cluster's stack.", code="forged"
            )
    return "".join(f"{line}\n" for line in found)


def _quoted(path: Path) -> str:
    """Quote a path for ssh_config: its percent signs, which introduce tokens, are doubled."""
    return '"' + str(path).replace("%", "%%") + '"'


@dataclass(frozen=True)
class Installed:
    """The Include `line` in the file `config`; `added` if it was not there before."""

    config: Path
    line: str
    added: bool


def hosts_text(cluster: Cluster) -> str:
    """Return Host blocks: NAME is the head, and NAME-worker2 and so on are the workers, reached through it.

    Workers are reached by name, not by address: the head resolves the name, also after a replacement.
    """
    cluster.require_ready()
    options = _options_of_hosts(cluster)
    there = [line for line in options if not line.startswith("Proxy")]
    blocks = [_block([cluster.name, f"{cluster.name}-head", f"{cluster.name}-worker1"], _head(cluster, options))]
    for number in worker_numbers(max(cluster.nodes, int(cluster.spec.get("nodes", 0)))):
        name = f"deeplearning-worker{number}"
        own = [f"HostName {name}", f"HostKeyAlias {name}", f"ProxyJump {cluster.name}", *there]
        blocks.append(_block([f"{cluster.name}-worker{number}"], own))
    return "\n".join(blocks)


def write_hosts(cluster: Cluster) -> Path:
    """Write the blocks beside the cluster's record, where the Include line finds them; `down` removes them."""
    path = cluster.directory / HOSTS
    write_private(path, hosts_text(cluster))
    return path


def include_hosts(cluster: Cluster) -> Installed:
    """Write the blocks, and include those of all clusters in ~/.ssh/config, as its first line."""
    write_hosts(cluster)
    config = Path.home() / ".ssh" / "config"
    line = f'Include "{state_directory()}/clusters/*/{HOSTS}"'
    try:
        present = config.read_text() if config.exists() else ""
        added = line not in present.splitlines()
        if added:
            _replace_config(config, f"{line}\n{present}")
    except OSError as error:
        raise ClusterError(
            f"can't change {config}: {error.strerror}", f"Add this as its first line: {line}", code="cannot-write"
        ) from error
    return Installed(config, line, added)


def _options_of_hosts(cluster: Cluster) -> list[str]:
    """Return the options for every node of the cluster, from the ssh_config that phalanx uses."""
    try:
        lines = cluster.ssh_config.read_text().partition("Host *\n")[2].splitlines()
    except OSError as error:
        raise ClusterError(
            f"{cluster.ssh_config} can't be read", "Run `phalanx up` to write it again.", code="cannot-read"
        ) from error
    return [line.strip() for line in lines if line.split()[:1] and line.split()[0] not in _LEFT_OUT]


def _head(cluster: Cluster, options: list[str]) -> list[str]:
    return [f"HostName {cluster.head_address}", f"HostKeyAlias {HEAD}", *options]


def _block(names: list[str], lines: list[str]) -> str:
    return joined([f"Host {' '.join(names)}", *(f"    {line}" for line in lines)])


def _replace_config(config: Path, content: str) -> None:
    """Replace the file atomically; a symbolic link stays one, and the file keeps its mode."""
    config.parent.mkdir(mode=0o700, exist_ok=True)
    real = config.resolve()
    mode = real.stat().st_mode & 0o777 if real.exists() else 0o600
    files.write(str(real), content, mode, is_synced=True)
