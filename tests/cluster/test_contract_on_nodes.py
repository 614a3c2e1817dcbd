"""The node contract, used as a user would: what every shell on every node can rely on."""

from __future__ import annotations

import json
import shlex

import pytest

pytestmark = pytest.mark.cluster

NODES = ("deeplearning-worker1", "deeplearning-worker2", "deeplearning-worker3", "deeplearning-worker4")
ENVIRONMENT = {
    "DEEPLEARNING_WORKERS_PATH": "/opt/deeplearning/workers",
    "DEEPLEARNING_WORKERS_COUNT": "4",
    "DEEPLEARNING_WORKER_GPU_COUNT": "0",
    "EFS_MOUNT": "/efs",
}


def on_each(cluster, command: str) -> list[str]:
    """Return a command's output on all four nodes, run from the head in a loop over ssh."""
    return [cluster.on("head", f"ssh {node} {shlex.quote(command)}") for node in NODES]


@pytest.mark.parametrize("shell", ["{}", "bash -lc {}", "sh -c {}"], ids=["ssh-command", "login-shell", "child-shell"])
def test_the_environment_is_there_in_every_kind_of_shell(cluster, shell):
    command = shell.format(shlex.quote("env")) if shell != "{}" else "env"
    for output in on_each(cluster, command):
        variables = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
        assert ENVIRONMENT.items() <= variables.items()


def test_every_node_knows_the_same_nodes(cluster):
    hosts = on_each(cluster, "sed -n '/phalanx/,/phalanx/p' /etc/hosts; getent hosts " + " ".join(NODES))
    assert len(set(hosts)) == 1
    addresses = [line.split()[0] for line in hosts[0].splitlines()[-4:]]
    assert len(set(addresses)) == 4
    for path in ("/opt/deeplearning/workers", "/opt/phalanx/hostfile", "/opt/phalanx/roster.json"):
        assert len(set(on_each(cluster, f"cat {path}"))) == 1, path


def test_the_workers_file_and_the_hostfile_name_all_nodes(cluster):
    assert cluster.on("head", "cat $DEEPLEARNING_WORKERS_PATH").split() == list(NODES)
    hostfile = cluster.on("head", "cat /opt/phalanx/hostfile").splitlines()
    assert hostfile == [f"{node} slots=2" for node in NODES]


def test_the_roster_is_complete(cluster):
    roster = json.loads(cluster.on("head", "cat /opt/phalanx/roster.json"))
    assert [node["name"] for node in roster["nodes"]] == list(NODES)
    assert [node["head"] for node in roster["nodes"]] == [True, False, False, False]
    assert roster["missing"] == []


def test_the_head_is_master_and_worker1(cluster):
    names = ("deeplearning-master", "deeplearning-worker1")
    master, first = (cluster.on("deeplearning-worker2", f"getent ahostsv4 {name}").split()[0] for name in names)
    assert master == first
    assert cluster.on("head", "hostname -I").split()[0] == master


def test_mpiexec_needs_no_flag(cluster):
    hostnames = cluster.on("head", "mpiexec -n 8 -N 2 hostname").split()
    assert len(hostnames) == 8
    assert all(hostnames.count(name) == 2 for name in hostnames)


def test_the_loop_of_2018_runs_as_it_was_printed(cluster):
    loop = (
        'while read -u 10 host; do ssh -o "StrictHostKeyChecking no" $host hostname; done 10<$DEEPLEARNING_WORKERS_PATH'
    )
    assert len(set(cluster.on("head", f"bash -c {shlex.quote(loop)}").split())) == 4


def test_any_node_reaches_any_node_by_name_and_by_address_without_a_prompt(cluster):
    addresses = [line.split()[0] for line in cluster.on("head", "getent hosts " + " ".join(NODES)).splitlines()]
    targets = " ".join([*NODES, "deeplearning-master", *addresses])
    each = f"for target in {targets}; do ssh -o BatchMode=yes $target hostname || exit 1; done"
    for output in on_each(cluster, each):
        assert len(output.split()) == 9
        assert len(set(output.split())) == 4


def test_host_keys_are_verified_not_trusted_on_first_use(cluster):
    known = cluster.on("head", "grep -v '^#' /etc/ssh/ssh_known_hosts").splitlines()
    assert len(known) == 1
    assert known[0].startswith("@cert-authority ")
    assert cluster.on("head", "ls ~/.ssh/known_hosts 2>/dev/null; true") == ""


def test_the_job_user_is_the_same_everywhere_and_has_no_sudo(cluster):
    if json.loads(cluster.phalanx("local", "status", "--json").stdout)["mode"] == "single":
        pytest.skip("every account is uid 0 in single mode")
    users = on_each(cluster, "id -un; id -u; sudo -n true 2>/dev/null && echo CAN-SUDO; true")
    assert len(set(users)) == 1
    name, uid, *more = users[0].split()
    assert (name, more) == ("phalanx", [])
    assert int(uid) > 0


def test_the_shared_directory_is_one_directory(cluster):
    for node in NODES:
        cluster.on("head", f"ssh {node} 'hostname > $EFS_MOUNT/seen-from-{node}'")
    listings = on_each(cluster, "cd $EFS_MOUNT && cat seen-from-*")
    assert len(set(listings)) == 1
    assert len(set(listings[0].split())) == 4


def test_nodes_see_the_instance_types_cores(cluster):
    assert set(on_each(cluster, "python3 -c 'import os; print(os.cpu_count())'")) == {"2\n"}
