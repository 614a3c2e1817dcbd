"""A minimal file system of a node before phalanx changes it, and a helper to apply the node contract to it."""

from __future__ import annotations

from pathlib import Path

from rosters import ROSTER

from phalanx.node import contract
from phalanx.node.contract import Machine, Papers
from phalanx.node.roster import Roster

MACHINE = Machine("us-east-1", "/efs", "phalanx", cores=2, path="/opt/env/bin:/usr/bin:/bin")
PAPERS = Papers("ssh-ed25519 CA", "host-cert", "user-cert")
ENVIRONMENT = 'PATH="/opt/env/bin:/usr/bin"\nLANG=C.UTF-8\n'


def small_image(root: Path) -> Path:
    """Make one in `root`. Its /proc is empty, so that no process on this machine is signalled."""
    etc = root / "etc"
    (etc / "ssh").mkdir(parents=True)
    (etc / "hosts").write_text("127.0.0.1 localhost\n")
    (etc / "environment").write_text(ENVIRONMENT)
    (etc / "ssh/sshd_config").write_text("Include /etc/ssh/sshd_config.d/*.conf\nUsePAM yes\n")
    (etc / "ssh/ssh_config").write_text("Host *\n    HashKnownHosts yes\n")
    (root / "proc").mkdir()
    return root


def apply(root: Path, roster: Roster = ROSTER, instance_id: str = "i-2", machine: Machine = MACHINE) -> None:
    """Write a node's contract into the image."""
    contract.apply(roster, instance_id, machine, PAPERS, str(root))
