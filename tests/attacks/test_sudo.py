"""Root on any node: a job must not get it by the administrator's sudo, by its own node's key and certificate, nor by a
program that root of another node has left on the shared directory."""

from __future__ import annotations

import shlex

import pytest
from terminals import a_cluster

pytestmark = pytest.mark.cluster

SPEC = "name: roots\ncloud: local\nnodes: 2\nmin: 2\ntype: c5.large\nshared: /efs\nkeep: no\n"
PLANTED = "/efs/mine"
EXPORTS = "/run/efs.host/exports"
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


@pytest.fixture(scope="module", params=["", "storage: head\n"])
def shared(request):
    """A cluster of two nodes with EFS, or with the head's disk, as its shared directory."""
    with a_cluster(SPEC + request.param) as terminal:
        yield terminal


def as_root(terminal, node, script):
    return terminal.phalanx(
        "ssh", "--admin", node, "--", shlex.join(["sudo", "sh", "-c", f"exec 2>&1; {script}"]), check=False
    )


def test_a_program_of_root_of_a_worker_gives_no_root_on_the_head(shared):
    planted = as_root(shared, "worker2", f"cp /bin/cat {PLANTED} && chown 0 {PLANTED} && chmod 4755 {PLANTED}")
    assert planted.returncode == 0, planted.stdout
    for node in ("head", "worker2"):
        assert shared.on(node, f"stat -c %a {PLANTED}").strip() == "4755"
        assert "Permission denied" in shared.on(node, f"{PLANTED} /etc/shadow 2>&1", check=False)


def test_links_that_a_worker_leaves_do_not_choose_what_the_head_mounts(shared):
    """Where the local cloud's nodes export directories, any node's root can write."""
    here = "10.9.9.9"
    left = f"mkdir -p {EXPORTS}/{here} && ln -sfn /home {EXPORTS}/{here}/x"
    mine = f"mkdir -p {EXPORTS}/$(cat /run/efs.host/address) && ln -sfn /home {EXPORTS}/$(cat /run/efs.host/address)/x"
    assert as_root(shared, "worker2", left).returncode == 0
    assert as_root(shared, "head", mine).returncode == 0
    client = as_root(shared, "head", f"mkdir -p /tmp/there && mount.nfs4 {here}:/x /tmp/there; echo $?; ls /tmp/there")
    assert client.stdout.splitlines()[-1] == "32", client.stdout
    server = as_root(shared, "head", "echo '/x *(rw)' >/etc/exports.d/x.exports && exportfs -ra; echo $?; ls /x")
    assert server.stdout.splitlines()[-1] != "0" and "phalanx" not in server.stdout, server.stdout
