"""Root on any node: a job must not get it by the administrator's sudo, nor by its own node's key and certificate."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.cluster

PROGRAM = "/usr/local/sbin/setpriv-for-sudo"


@pytest.mark.parametrize(
    "attempt",
    [
        "sudo -n id -u",
        "sudo -nu ubuntu sudo -n id -u",
        f"{PROGRAM} --reuid 0 id -u",
        f"/lib64/ld-linux-x86-64.so.2 {PROGRAM} --reuid 0 id -u",
        f"cp --preserve=all {PROGRAM} /tmp/mine && /tmp/mine --reuid 0 id -u",
        f"unshare -r sh -c '{PROGRAM} --reuid 0 cat /etc/shadow'",
    ],
)
def test_a_job_does_not_become_root_by_the_administrators_sudo(cluster, attempt):
    shown = cluster.on("worker2", f"{attempt} 2>&1", check=False).splitlines()
    assert "0" not in shown and not any(line.startswith("root:") for line in shown), shown


@pytest.mark.parametrize("user", ["root", "ubuntu"])
@pytest.mark.parametrize("node", ["localhost", "deeplearning-worker3", "deeplearning-master"])
def test_a_nodes_certificate_opens_no_other_account(cluster, user, node):
    enter = "ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -v"
    key = "-i /etc/ssh/phalanx/id_ed25519 -o CertificateFile=/etc/ssh/phalanx/id_ed25519-cert.pub"
    shown = cluster.on("worker2", f"{enter} {key} {user}@{node} 'echo in as $(id -un)' 2>&1", check=False)
    assert "Offering public key" in shown and "Permission denied" in shown
    assert "in as" not in shown
