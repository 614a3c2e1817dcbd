"""A cluster in the user's own ssh configuration, so that plain ssh, scp, rsync and editors reach its nodes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from phalanx.cluster.cluster_record import HEAD, Cluster, state_directory, write_private
from phalanx.errors import ClusterError

HOSTS = "ssh_hosts"
# Ours alone: phalanx names a socket for each shared connection on its command line.
_LEFT_OUT = ("ControlMaster", "ControlPersist", "LogLevel")


@dataclass(frozen=True)
class Installed:
    """`line` stands in `config`; `added`: it did not before."""

    config: Path
    line: str
    added: bool


def text(cluster: Cluster) -> str:
    """Host blocks: NAME is the head, NAME-worker2 and so on the workers, reached through it.

    Workers are named and not numbered by address: the head knows who has the name now, also after a replacement.
    """
    cluster.require_ready()
    options = _options(cluster)
    there = [line for line in options if not line.startswith("Proxy")]
    blocks = [_block([cluster.name, f"{cluster.name}-head", f"{cluster.name}-worker1"], _head(cluster, options))]
    for number in range(2, max(cluster.nodes, int(cluster.spec.get("nodes", 0))) + 1):
        name = f"deeplearning-worker{number}"
        own = [f"HostName {name}", f"HostKeyAlias {name}", f"ProxyJump {cluster.name}", *there]
        blocks.append(_block([f"{cluster.name}-worker{number}"], own))
    return "\n".join(blocks)


def write(cluster: Cluster) -> Path:
    """Keep the blocks beside the cluster's record, where the Include line finds them; they go with `down`."""
    path = cluster.directory / HOSTS
    write_private(path, text(cluster))
    return path


def install(cluster: Cluster) -> Installed:
    """Write the blocks, and see that ~/.ssh/config includes those of all clusters: one line, its first."""
    write(cluster)
    config = Path.home() / ".ssh" / "config"
    line = f'Include "{state_directory()}/clusters/*/{HOSTS}"'
    try:
        present = config.read_text() if config.exists() else ""
        added = line not in present.splitlines()
        if added:
            _replace(config, f"{line}\n{present}")
    except OSError as error:
        raise ClusterError(f"can't change {config}: {error.strerror}", f"Add this as its first line: {line}") from error
    return Installed(config, line, added)


def _options(cluster: Cluster) -> list[str]:
    """What holds for every node of the cluster, from the file that phalanx itself uses."""
    try:
        lines = cluster.ssh_config.read_text().partition("Host *\n")[2].splitlines()
    except OSError as error:
        raise ClusterError(f"{cluster.ssh_config} can't be read", "`phalanx up` writes it again.") from error
    return [line.strip() for line in lines if line.split()[:1] and line.split()[0] not in _LEFT_OUT]


def _head(cluster: Cluster, options: list[str]) -> list[str]:
    return [f"HostName {cluster.head_address}", f"HostKeyAlias {HEAD}", *options]


def _block(names: list[str], lines: list[str]) -> str:
    return f"Host {' '.join(names)}\n" + "".join(f"    {line}\n" for line in lines)


def _replace(config: Path, content: str) -> None:
    """Beside and renamed; a link (dotfiles) stays one, and so does the file's mode."""
    config.parent.mkdir(mode=0o700, exist_ok=True)
    real = config.resolve()
    mode = real.stat().st_mode & 0o777 if real.exists() else 0o600
    beside = real.with_name(f".{real.name}.{os.getpid()}")
    beside.touch(mode=0o600)
    beside.write_text(content)
    beside.chmod(mode)
    beside.replace(real)
