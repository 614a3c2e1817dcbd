"""What the system's own boot does to a node: its services, its names, a reboot, its accounts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from full_systems import ADMINISTRATOR, a_full_cluster, as_root, nodes, reboot
from terminals import Terminal
from verdicts import is_proven

pytestmark = pytest.mark.full_os

_PSS = "cat /proc/[0-9]*/smaps_rollup | awk '/^Pss:/ { kib += $2 } END { print int(kib / 1024) }'"
FIGURES = {
    "seconds until all units have started": "systemd-analyze | sed -n 's/.*reached after \\([0-9.]*\\)s.*/\\1/p'",
    "MiB of memory of all processes (PSS)": _PSS,
    "MiB written to the disk": "df --output=used -BM / | tail -1",
}
# Each is a mount of the supervisor's, a limit of it, or the machine's own.
ATTEMPTS = (
    "umount /run/efs.host/fs-*",
    "umount /dev/console",
    "umount /dev/shm",
    "echo max > /sys/fs/cgroup/cgroup.max.descendants",
    "echo never > /sys/kernel/mm/transparent_hugepage/enabled",
    "mount -t sysfs none /mnt",
    "mknod /tmp/disk b 8 0",
    "echo x > /proc/sys/kernel/core_pattern",
)
OWN_ADDRESS = "python3 -c 'import socket; print(socket.gethostbyname(socket.gethostname()))'"


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with a_full_cluster("fullos", 4) as terminal:
        yield terminal


def test_systemd_has_started_all_units_and_the_agent_is_one_of_them(terminal):
    assert as_root(terminal, "head", "systemctl is-system-running --wait") == "running\n"
    assert as_root(terminal, "head", "systemctl --failed --no-legend") == ""
    assert as_root(terminal, "head", "systemctl is-active phalanx") == "active\n"


def test_cloud_init_has_found_ec2_and_run_the_user_data_once(terminal):
    result = json.loads(as_root(terminal, "head", "cat /run/cloud-init/result.json"))["v1"]
    assert ("DataSourceEc2" in result["datasource"], result["errors"]) == (True, []), result
    assert as_root(terminal, "head", "ls /var/lib/cloud/instance/sem/config_scripts_user").strip()


def test_every_node_knows_itself_and_the_others_by_the_address_that_others_use(terminal):
    """cloud-init's /etc/hosts gives a node's own name a loopback address, where no other node reaches it."""
    for node in nodes(terminal):
        assert terminal.on(node["name"], OWN_ADDRESS).strip() == node["address"]
    done = terminal.phalanx("run", "--launcher", "exec", "--", "sh", "-c", OWN_ADDRESS)
    found = [line.split()[1] for line in done.stdout.splitlines()]
    assert sorted(found) == sorted(node["address"] for node in nodes(terminal))


def test_nodes_log_in_to_each_other_by_name_without_a_prompt(terminal):
    each = "while read -u 10 host; do ssh $host hostname; done 10<$DEEPLEARNING_WORKERS_PATH"
    assert len(set(terminal.on("worker2", f"bash -c '{each}'").split())) == 4


def test_the_administrator_is_the_images_own(terminal):
    assert ADMINISTRATOR in as_root(terminal, "worker2", "echo $SUDO_USER")
    record = json.loads(next((terminal.state / "clusters").glob("*/cluster.json")).read_text())
    assert record["admin_user"] == ADMINISTRATOR


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_root_on_a_node_cant_undo_what_the_local_cloud_has_built(terminal, attempt):
    assert as_root(terminal, "worker3", f"{attempt} >&2 || echo refused") == "refused\n"


def test_figures_of_a_node(terminal):
    for figure, command in FIGURES.items():
        print(f"figure: {figure}: {as_root(terminal, 'worker2', command).strip()}")


def test_a_job_leaves_nothing_to_its_users_own_systemd(terminal):
    """A process of `systemd-run --user` has no mark of the job, and is no descendant of it."""
    escape = "XDG_RUNTIME_DIR=/run/user/$(id -u) systemd-run --user sleep 4713; echo $?"
    done = terminal.phalanx("run", "--launcher", "exec", "--", "sh", "-c", escape)
    assert is_proven(done.stderr, 4)
    assert as_root(terminal, "head", "pgrep -fx '[^ ]*sleep 4713' || true") == "", done.stdout


def test_nodes_have_what_the_contract_promises_though_the_image_lacks_it(terminal):
    done = terminal.on("head", "mpiexec -n 8 -N 2 hostname")
    assert sorted(done.split()) == sorted(2 * [f"ip-{node['address'].replace('.', '-')}" for node in nodes(terminal)])
    assert "pip" in terminal.on("worker3", "python3 -m venv /tmp/venv && /tmp/venv/bin/pip --version")


@pytest.mark.parametrize("number", [4, 1])
def test_a_node_that_reboots_by_itself_is_the_same_node_again(terminal, number):
    before = nodes(terminal)[number - 1]
    reboot(terminal, before["name"])
    after = nodes(terminal)[number - 1]
    assert (after["name"], after["instance_id"]) == (before["name"], before["instance_id"])
    assert terminal.on(before["name"], OWN_ADDRESS).strip() == before["address"]
    assert terminal.on(before["name"], "findmnt -no TARGET $EFS_MOUNT").strip() == "/efs"
