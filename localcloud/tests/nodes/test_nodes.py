"""Nodes of the local cloud are machines: booted for real, in each uid mode, as root and as an ordinary user."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from node_lab import DIAL, Lab, a_lab, a_lab_of, wait

pytestmark = pytest.mark.cluster


def test_a_node_is_a_machine_of_its_own(lab: Lab, pair: tuple[str, str]) -> None:
    facts = lab.ssh(pair[0], "hostname; hostname -I; cat /etc/hostname; id -u; ls -d /var/lib/cloud/instance/boot-fin*")
    assert facts.stdout.split() == [
        "ip-10-0-1-11",
        "10.0.1.11",
        "ip-10-0-1-11",
        "0",
        "/var/lib/cloud/instance/boot-finished",
    ]
    assert "out of node one" in lab.ssh(pair[0], "cat /var/log/cloud-init-output.log").stdout
    assert lab.ssh(pair[0], "head -c2 /var/lib/cloud/instance/user-data.txt").stdout == "#!"
    assert lab.ssh(pair[0], "cat /sys/class/net/eth0/address /sys/class/net/eth0/mtu").stdout.split() == [
        "0a:ff:0a:00:01:0b",
        "9001",
    ]


def test_a_node_has_its_types_cpus_and_mpi_runs_on_them(lab: Lab, pair: tuple[str, str]) -> None:
    count = "python3 -c 'import os; print(os.cpu_count(), len(os.sched_getaffinity(0)))'"
    assert lab.ssh(pair[1], count).stdout.split() == ["8", str(len(os.sched_getaffinity(0)))]
    if shutil.which("mpiexec"):
        run = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpiexec --oversubscribe -n 3 hostname"
        assert lab.ssh(pair[1], run).stdout.split() == ["ip-10-0-1-12"] * 3


def test_nodes_reach_each_other_by_ssh_and_nothing_else(lab: Lab, pair: tuple[str, str]) -> None:
    assert "ip-10-0-1-12" in lab.ssh(pair[0], "ssh 10.0.1.12 hostname").stdout
    route = "python3 -c 'import socket; socket.create_connection((\"8.8.8.8\", 53), 60)'"
    assert "refused" in lab.ssh(pair[0], route, check=False).stderr  # at once: a download must not wait for its timeout
    assert lab.ssh(pair[0], "ip route show default").stdout.startswith("default via 10.0.0.1 dev eth0")


def test_a_node_and_its_router_need_not_ask_for_each_other(lab: Lab, pair: tuple[str, str]) -> None:
    assert "0x6" in lab.ssh(pair[0], "grep '^10.0.0.1 ' /proc/net/arp").stdout.split(), "complete and permanent"


WHO_AM_I = """\
from urllib.request import Request, urlopen
def ask(method, path, **headers):
    there = f"http://169.254.169.254/latest/{path}"
    names = {f"X-aws-ec2-metadata-token{name}": value for name, value in headers.items()}
    return urlopen(Request(there, method=method, headers=names), timeout=60).read().decode()
token = ask("PUT", "api/token", **{"-ttl-seconds": "60"})
print(ask("GET", "meta-data/instance-id", **{"": token}))
"""


def test_metadata_answers_by_source_address(lab: Lab, pair: tuple[str, str]) -> None:
    assert [lab.ssh(node, f"python3 -c {shlex.quote(WHO_AM_I)}").stdout.strip() for node in pair] == list(pair)


def test_the_image_is_read_only_but_for_what_a_machine_writes(lab: Lab, pair: tuple[str, str]) -> None:
    assert "Read-only" in lab.ssh(pair[0], "touch /usr/x", check=False).stderr
    lab.ssh(pair[0], "touch /etc/x /opt/x /var/log/x /home/ubuntu/x /dev/shm/x /tmp/x")
    assert lab.ssh(pair[1], "ls /etc/x /opt/x /var/log/x /tmp/x", check=False).stdout == ""
    assert lab.ssh(pair[0], "cat /proc/self/mounts").stdout.count(" /usr ") == 1


def test_a_node_holds_no_descriptor_and_no_environment_of_the_host(lab: Lab, pair: tuple[str, str]) -> None:
    held = lab.ssh(pair[0], "readlink /proc/1/fd/*").stdout.split()
    assert {re.sub(r":\[\d+\]", "", name) for name in held} == {"/dev/null", "/sbin/init", "pipe"}
    names = {line.partition("=")[0] for line in lab.ssh(pair[0], "tr '\\0' '\\n' < /proc/1/environ").stdout.split()}
    assert names <= {"PATH", "LANG", "AWS_ENDPOINT_URL", "PWD", "SHLVL", "_"}


def test_orphans_are_reaped(lab: Lab, pair: tuple[str, str]) -> None:
    lab.ssh(pair[0], "(setsid sh -c 'sleep 0.2' &) ; sleep 0.3")
    wait(lambda: "Z" not in lab.ssh(pair[0], "ps -e -o stat=").stdout, "the last zombie")


def test_sshd_reads_drop_ins_again_at_sighup(lab: Lab, pair: tuple[str, str]) -> None:
    lab.ssh(
        pair[1], "echo 'SetEnv GREETING=hello' > /etc/ssh/sshd_config.d/60-test.conf; kill -HUP $(cat /run/sshd.pid)"
    )
    wait(lambda: "hello" in lab.ssh(pair[1], "echo $GREETING", check=False).stdout, "sshd's new environment")


def test_efs_is_one_directory_on_all_nodes(lab: Lab, pair: tuple[str, str]) -> None:
    for node in pair:
        lab.ssh(node, "mkdir -p /efs && mount -t efs -o tls fs-1:/ /efs && mountpoint -q /efs")
    lab.ssh(pair[0], "mkdir -p /efs/sub && echo shared > /efs/sub/file")
    assert lab.ssh(pair[1], "cat /efs/sub/file").stdout == "shared\n"
    assert (lab.state / "efs/fs-1/sub/file").read_text() == "shared\n"
    lab.ssh(pair[1], "mkdir -p /mnt/s && mount -t efs -o tls,iam,ro fs-1.efs.us-east-1.amazonaws.com:/sub /mnt/s")
    assert "Read-only" in lab.ssh(pair[1], "touch /mnt/s/x", check=False).stderr
    lab.ssh(pair[1], "umount /mnt/s")
    for node in pair:
        lab.ssh(node, "umount /efs")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("-o tls fs-404:/ /mnt", 'Failed to resolve "fs-404.efs.us-east-1.amazonaws.com"'),
        ("-o tls fs-1:/absent /mnt", "No such file or directory"),
        ("-o iam fs-1:/ /mnt", 'The "tls" option is required'),
        ("-o tls ../etc:/ /mnt", "Invalid file system name"),
    ],
)
def test_efs_refuses_in_the_helpers_words(lab: Lab, pair: tuple[str, str], arguments: str, message: str) -> None:
    refused = lab.ssh(pair[0], f"mount -t efs {arguments}", check=False)
    assert refused.returncode != 0
    assert message in refused.stderr


def test_accounts_are_real_where_the_mode_has_them(lab: Lab, pair: tuple[str, str]) -> None:
    if lab.mode == "single":
        assert lab.ssh(pair[0], "id -u ubuntu").stdout == "0\n"
        return
    lab.ssh(pair[0], "useradd -m -u 2000 guest && mkdir -p /efs && chmod 700 /root")
    assert lab.ssh(pair[0], "runuser -u guest -- sh -c 'id -u; ls /root' 2>&1", check=False).stdout.startswith(
        "2000\nls:"
    )
    lab.ssh(pair[0], "mkdir /opt/own && chown guest /opt/own && su guest -c 'touch /opt/own/file'")
    assert lab.ssh(pair[0], "stat -c %U /opt/own/file").stdout == "guest\n"


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("-n id -u", "0"),
        ("-- sh -c 'id -u; echo \"$1\"' sh 'a  b'", "0\na  b"),
        ("A=1 B='x y' printenv A B HOME USER KEPT", "1\nx y\n/root\nroot"),
        ("-E printenv KEPT", "kept"),
        ("-i sh -c 'pwd; echo \"$HOME\"'", "/root\n/root"),
        ("-s id -u", "0"),
    ],
)
def test_the_administrator_may_sudo(lab: Lab, pair: tuple[str, str], command: str, shown: str) -> None:
    done = lab.ssh(pair[0], f"KEPT=kept su ubuntu -c {shlex.quote(f'sudo {command}')}", check=False)
    assert done.stdout.strip() == shown, done.stderr


def test_sudo_distinguishes_accounts_where_the_mode_has_them(lab: Lab, pair: tuple[str, str]) -> None:
    if lab.mode == "single":
        return
    lab.ssh(pair[0], "id other || useradd other")
    back = "sudo -nu other sh -c 'id -un; id -Gn; echo $SUDO_USER'"
    assert lab.ssh(pair[0], f"su ubuntu -c {shlex.quote(back)}").stdout.split() == ["other", "other", "ubuntu"]
    for program in ("sudo -n", "/usr/local/sbin/setpriv-for-sudo --reuid 0"):
        refused = lab.ssh(pair[0], f"su other -c '{program} id -u'", check=False)
        assert refused.returncode != 0 and refused.stdout == "", refused.stderr


def test_one_address_in_two_vpcs_is_two_nodes(lab: Lab) -> None:
    first = lab.boot(11, vpc="vpc-2", address="10.0.1.11")
    second = lab.boot(12, vpc="vpc-3", address="10.0.1.11")
    for node in (first, second):
        lab.wait_booted(node)
        lab.ssh(node, f"echo {node} > /tmp/me")
    assert [lab.ssh(node, "cat /tmp/me").stdout.strip() for node in (first, second)] == [first, second]
    for vpc in ("vpc-2", "vpc-3"):
        lab.do("remove_vpc", vpc_id=vpc)
    assert not {node["vpc_id"] for node in lab.do("nodes")} & {"vpc-2", "vpc-3"}


def test_user_data_that_fails_says_so_on_the_console(lab: Lab) -> None:
    node = lab.boot(6, "echo some words >&2; exit 3")
    log = lab.state / "nodes" / node / "console.log"
    wait(lambda: "user data ended with status 3" in log.read_text(), "the end")
    assert "some words" in log.read_text()
    lab.do("kill", instance_id=node)


def test_the_dialer_names_a_missing_node(lab: Lab) -> None:
    argv = [sys.executable, "-IS", str(DIAL), f"{lab.state}/dial.sock", "203.0.113.7", "22"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (
        1,
        "localcloud: 203.0.113.7 belongs to no running instance of the local cloud\n",
    )


def test_a_boot_that_fails_says_why_and_leaves_nothing(lab: Lab) -> None:
    with pytest.raises(RuntimeError, match=r"^boot of i-0+7: \w+Error: .+"):
        lab.boot(7, address="10.0.1.9999")
    assert not (lab.state / "nodes" / f"i-{7:017x}").exists()


def test_root_needs_no_user_namespace() -> None:
    if os.geteuid():
        pytest.skip("needs root")
    with a_lab("root") as lab:
        node = lab.boot(1)
        lab.wait_booted(node)
        lab.ssh(node, "useradd -m -u 2000 guest && runuser -u guest -- touch /home/guest/file")
        pid = lab.do("nodes")[0]["pid"]
        assert Path(f"/proc/{pid}/ns/user").readlink() == Path("/proc/self/ns/user").readlink()


def test_the_users_own_account_is_root_in_single_mode() -> None:
    with a_lab_of("single-user") as lab:
        lab.wait_booted(lab.boot(1, "touch /opt/file"))
        pid = lab.do("nodes")[0]["pid"]
        assert (Path("/proc") / str(pid)).stat().st_uid == pwd.getpwnam(str(lab.user)).pw_uid
