"""How ssh reaches a cluster's nodes: its configuration, and the authority that certifies their host keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from phalanx.cluster.cluster_record import HEAD, JOB_USER, Cluster
from phalanx.errors import ClusterError
from phalanx.state_files import write_private


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
