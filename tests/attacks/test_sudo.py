"""Root on any node: a job must not get it by the administrator's sudo, by its own node's key and certificate, nor by a
program that root of another node has left on the shared directory."""

from __future__ import annotations

import shlex

import pytest
from terminals import a_cluster

pytestmark = pytest.mark.cluster

SPEC = "name: roots\ncloud: local\nnodes: 2\nmin: 2\ntype: c5.large\nshared: /efs\nkeep: no\n"
PLANTED = "/efs/mine"
SHELF = "/run/efs.host"
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


_PLANT = """
head=$(getent hosts deeplearning-master | cut -d ' ' -f 1)
find {shelf} -maxdepth 2 -type d | while read -r place; do
  mkdir -p "$place/$head/x" && touch "$place/$head/x/planted"
  mkdir -p "$place/10.9.9.9" && ln -sfn /home "$place/10.9.9.9/x"
done
find {shelf} -maxdepth 2 -type f | while read -r list; do echo "/x ../../../../home" >>"$list"; done
true
"""


def test_a_worker_chooses_nothing_that_the_head_exports_or_mounts(shared):
    """Where the local cloud's nodes show each other what they export, a node writes only its own part."""
    assert as_root(shared, "worker2", _PLANT.format(shelf=SHELF)).returncode == 0
    for here in ("10.9.9.9", "deeplearning-worker2", "$(getent hosts deeplearning-worker2 | cut -d ' ' -f 1)"):
        mounts = f"mkdir -p /tmp/there && mount.nfs4 {here}:/x /tmp/there; echo $?; ls /tmp/there"
        client = as_root(shared, "head", mounts)
        assert client.stdout.splitlines()[-1] == "32", client.stdout
    export = "mkdir -p /etc/exports.d && echo '{} *(rw)' >/etc/exports.d/x.exports && exportfs -ra; echo $?; ls -A /x"
    server = as_root(shared, "head", export.format("/x"))
    assert server.stdout.splitlines()[-1] == "0", server.stdout
    reached = as_root(shared, "worker2", "mount.nfs4 $(getent hosts deeplearning-master | cut -d ' ' -f 1):/x /mnt")
    assert reached.returncode == 0, reached.stdout
