"""A cluster in the user's own ssh configuration, so that plain ssh, scp, rsync and editors reach its nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phalanx.cluster.cluster_record import HEAD, Cluster
from phalanx.cluster.ssh_config import joined
from phalanx.errors import ClusterError
from phalanx.node import files
from phalanx.node.workers_group import worker_numbers
from phalanx.state_files import state_directory, write_private

HOSTS = "ssh_hosts"
# Only for phalanx, which names the socket of each shared connection on ssh's command line.
_LEFT_OUT = ("ControlMaster", "ControlPersist", "LogLevel")


@dataclass(frozen=True)
class Installed:
    """The Include `line` in the file `config`; `added` if it was not there before."""

    config: Path
    line: str
    added: bool


def text(cluster: Cluster) -> str:
    """Return Host blocks: NAME is the head, and NAME-worker2 and so on are the workers, reached through it.

    Workers are reached by name, not by address: the head resolves the name, also after a replacement.
    """
    cluster.require_ready()
    options = _options(cluster)
    there = [line for line in options if not line.startswith("Proxy")]
    blocks = [_block([cluster.name, f"{cluster.name}-head", f"{cluster.name}-worker1"], _head(cluster, options))]
    for number in worker_numbers(max(cluster.nodes, int(cluster.spec.get("nodes", 0)))):
        name = f"deeplearning-worker{number}"
        own = [f"HostName {name}", f"HostKeyAlias {name}", f"ProxyJump {cluster.name}", *there]
        blocks.append(_block([f"{cluster.name}-worker{number}"], own))
    return "\n".join(blocks)


def write(cluster: Cluster) -> Path:
    """Write the blocks beside the cluster's record, where the Include line finds them; `down` removes them."""
    path = cluster.directory / HOSTS
    write_private(path, text(cluster))
    return path


def install(cluster: Cluster) -> Installed:
    """Write the blocks, and include those of all clusters in ~/.ssh/config, as its first line."""
    write(cluster)
    config = Path.home() / ".ssh" / "config"
    line = f'Include "{state_directory()}/clusters/*/{HOSTS}"'
    try:
        present = config.read_text() if config.exists() else ""
        added = line not in present.splitlines()
        if added:
            _replace(config, f"{line}\n{present}")
    except OSError as error:
        raise ClusterError(
            f"can't change {config}: {error.strerror}", f"Add this as its first line: {line}", code="cannot-write"
        ) from error
    return Installed(config, line, added)


def _options(cluster: Cluster) -> list[str]:
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


def _replace(config: Path, content: str) -> None:
    """Replace the file atomically; a symbolic link stays one, and the file keeps its mode."""
    config.parent.mkdir(mode=0o700, exist_ok=True)
    real = config.resolve()
    mode = real.stat().st_mode & 0o777 if real.exists() else 0o600
    files.write(str(real), content, mode, is_synced=True)
