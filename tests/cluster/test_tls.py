"""EFS by TLS only: nodes mount it so, and the file system refuses whoever does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from terminals import Terminal, a_cluster

pytestmark = pytest.mark.cluster

SPEC = "name: secret\ncloud: local\nnodes: 2\nmin: 2\ntype: c5.large\nkeep: no\ntls: required\n"


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with a_cluster(SPEC) as terminal:
        yield terminal


def test_nodes_share_a_directory_that_is_mounted_by_tls(terminal):
    terminal.on("head", "echo shared > /efs/file")
    assert terminal.on("worker1", "cat /efs/file").strip() == "shared"
    assert "efs _netdev,tls," in terminal.on("worker1", "grep /efs /etc/fstab")


def test_a_mount_without_tls_is_refused_in_words(terminal):
    place = terminal.on("head", "awk '$2 == \"/efs\" { print $1 }' /etc/fstab").strip()
    mount = f"mkdir -p /mnt/x; mount -t efs {place} /mnt/x 2>&1; mount -t efs -o tls {place} /mnt/x && echo yes"
    said = terminal.phalanx("ssh", "--admin", "head", "--", f"sudo sh -c '{mount}'", check=False)
    shown = said.stdout + said.stderr
    assert "access denied by server while mounting" in shown and shown.strip().endswith("yes"), shown
