"""Nodes of the local cloud are machines: booted for real, in each uid mode, as root and as an ordinary user."""

from __future__ import annotations

import base64
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
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
    route = "python3 -c 'import socket; socket.create_connection((\"8.8.8.8\", 53), 5)'"
    assert "refused" in lab.ssh(pair[0], route, check=False).stderr  # at once: a download must not wait for its timeout
    assert lab.ssh(pair[0], "ip route show default").stdout.startswith("default via 10.0.0.1 dev eth0")


def test_a_node_and_its_router_need_not_ask_for_each_other(lab: Lab, pair: tuple[str, str]) -> None:
    assert "0x6" in lab.ssh(pair[0], "grep '^10.0.0.1 ' /proc/net/arp").stdout.split(), "complete and permanent"


WHO_AM_I = """\
from urllib.request import Request, urlopen
def ask(method, path, **headers):
    there = f"http://169.254.169.254/latest/{path}"
    names = {f"X-aws-ec2-metadata-token{name}": value for name, value in headers.items()}
    return urlopen(Request(there, method=method, headers=names), timeout=10).read().decode()
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
    lab.ssh(pair[0], "(setsid sh -c 'sleep 0.2' &) ; sleep 0.6")
    assert "Z" not in lab.ssh(pair[0], "ps -e -o stat=").stdout


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
    lab.ssh(pair[0], "useradd -m -u 2000 phalanx && mkdir -p /efs && chmod 700 /root")
    assert lab.ssh(pair[0], "runuser -u phalanx -- sh -c 'id -u; ls /root' 2>&1", check=False).stdout.startswith(
        "2000\nls:"
    )
    lab.ssh(pair[0], "mkdir /opt/own && chown phalanx /opt/own && su phalanx -c 'touch /opt/own/file'")
    assert lab.ssh(pair[0], "stat -c %U /opt/own/file").stdout == "phalanx\n"


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


def test_a_killed_node_is_gone_and_its_peers_notice(lab: Lab, pair: tuple[str, str]) -> None:
    node = lab.boot(3)
    lab.wait_booted(node)
    pid = next(state["pid"] for state in lab.do("nodes") if state["instance_id"] == node)
    assert Path(f"/proc/{pid}").exists()
    watch = _connect_from(lab, pair[0], "10.0.1.13")
    lab.do("kill", instance_id=node)
    assert watch.communicate(timeout=10)[0].strip() == "closed"
    assert not Path(f"/proc/{pid}").exists()
    assert not (lab.state / "nodes" / node).exists()
    lab.do("kill", instance_id=node)


def test_a_silently_killed_node_stops_answering_and_can_boot_again(lab: Lab, pair: tuple[str, str]) -> None:
    node = lab.boot(4)
    lab.wait_booted(node)
    watch = _connect_from(lab, pair[0], "10.0.1.14")
    lab.do("kill", instance_id=node, silent=True)
    assert watch.communicate(timeout=10)[0].strip() == "silent"
    lab.boot(4)
    lab.wait_booted(node)
    lab.do("kill", instance_id=node)


def _connect_from(lab: Lab, node: str, address: str) -> subprocess.Popen[str]:
    """On `node`, hold a connection to sshd at `address` and print what becomes of it within two seconds."""
    program = (
        "import socket, sys; s = socket.create_connection((sys.argv[1], 22), 5); s.recv(99); "
        "open('/tmp/connected', 'w').close(); s.settimeout(2)\n"
        "try: s.recv(9); print('closed')\n"
        "except TimeoutError: print('silent')\n"
        "except OSError: print('closed')\n"
    )
    encoded = base64.b64encode(program.encode()).decode()
    lab.ssh(node, f"rm -f /tmp/connected; echo {encoded} | base64 -d > /tmp/watch.py")
    proxy = f"{sys.executable} -IS {DIAL} {lab.state}/dial.sock %h %p"
    argv = ["ssh", "-F", "none", "-i", str(lab.key), "-o", "ProxyUseFdpass=yes", "-o", f"ProxyCommand={proxy}"]
    argv += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
    command = [*argv, f"root@{node}", f"python3 /tmp/watch.py {address}"]
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    wait(lambda: lab.ssh(node, "test -e /tmp/connected", check=False).returncode == 0, "the connection")
    return watch


def test_a_partition_cuts_and_heals(lab: Lab, pair: tuple[str, str]) -> None:
    reach = "ssh -o ConnectTimeout=1 10.0.1.12 hostname"
    lab.do("partition", instance_id=pair[1], cut=True)
    assert lab.ssh(pair[0], reach, check=False).returncode != 0
    lab.do("partition", instance_id=pair[1], cut=False)
    wait(lambda: lab.ssh(pair[0], reach, check=False).returncode == 0, "the healed link")


def _megabits_s(lab: Lab, sender: str, receiver: str, receivers_address: str) -> float:
    """Return how fast 4 MB pass from one node to another."""
    program = (
        "import socket, time\n"
        "peer, _ = socket.create_server(('', 7777)).accept()\n"
        "size, began = 0, time.monotonic()\n"
        "while data := peer.recv(1 << 20): size += len(data)\n"
        "print(size * 8 / 1e6 / (time.monotonic() - began))"
    )
    lab.ssh(receiver, f"nohup timeout 20 python3 -c {shlex.quote(program)} >/tmp/rate 2>&1 </dev/null &")
    lab.ssh(
        sender,
        f"for i in 1 2 3 4 5; do head -c 4M /dev/zero >/dev/tcp/{receivers_address}/7777 && break; sleep 0.2; done",
    )
    wait(lambda: lab.ssh(receiver, "cat /tmp/rate").stdout != "", "the receiver's result")
    return float(lab.ssh(receiver, "cat /tmp/rate").stdout)


def test_a_shaped_link_carries_its_rate_both_ways_until_that_is_lifted(lab: Lab, pair: tuple[str, str]) -> None:
    lab.do("shape", instance_id=pair[1], rate_bit_s=20 * 10**6, delay_s=0.0)
    assert 10 < _megabits_s(lab, pair[0], pair[1], "10.0.1.12") < 25
    assert 10 < _megabits_s(lab, pair[1], pair[0], "10.0.1.11") < 25
    _reboot(lab, pair[1], lambda: lab.do("reboot", instance_id=pair[1]))
    assert 10 < _megabits_s(lab, pair[1], pair[0], "10.0.1.11") < 25, "a reboot lifts it"
    lab.do("shape", instance_id=pair[1], rate_bit_s=0, delay_s=0.0)
    assert _megabits_s(lab, pair[1], pair[0], "10.0.1.11") > 40


def test_packets_are_delayed_or_the_kernel_that_cannot_is_named(lab: Lab, pair: tuple[str, str]) -> None:
    connect = (
        "import socket, time; t = time.monotonic(); socket.create_connection(('10.0.1.12', 22));"
        " print(time.monotonic() - t)"
    )
    try:
        lab.do("shape", instance_id=pair[1], rate_bit_s=0, delay_s=0.05)
    except RuntimeError as refusal:
        assert "kernel has no netem" in str(refusal)
    else:
        assert float(lab.ssh(pair[0], f"python3 -c {shlex.quote(connect)}").stdout) > 0.05
        lab.do("shape", instance_id=pair[1], rate_bit_s=0, delay_s=0.0)
    shapes = {state["instance_id"]: state["rate_bit_s"] for state in lab.do("nodes")}
    assert shapes[pair[1]] == 0


def test_packets_of_a_node_without_a_way_out_are_dropped(lab: Lab, pair: tuple[str, str]) -> None:
    node = lab.boot(6, has_way_out=False)
    outside = "timeout 1 bash -c '</dev/tcp/169.254.1.1/4566'; echo $?"

    def reached(command: str) -> str:
        """From inside the VPC: answers to this machine leave it, too."""
        return lab.ssh(pair[0], f'ssh -o ConnectTimeout=1 10.0.1.16 "{command}"', check=False).stdout

    wait(lambda: reached("echo hello") == "hello\n", "a login from a neighbour")
    assert reached("timeout 1 bash -c '</dev/tcp/169.254.169.254/80'; echo \\$?") == "0\n"
    assert reached(outside.replace("$", "\\$")) == "124\n", "neither dropped nor refused"
    lab.do("give_way_out", instance_id=node)
    # Nobody listens there in this lab: a refusal is an answer.
    assert reached(outside.replace("$", "\\$")) == "1\n"
    lab.do("kill", instance_id=node)


def test_a_node_that_stands_still_accepts_connections_and_continues(lab: Lab, pair: tuple[str, str]) -> None:
    login = "ssh -o ConnectTimeout=1 10.0.1.12 hostname"
    lab.do("stall", instance_id=pair[1], stalled=True)
    lab.ssh(pair[0], "timeout 1 bash -c '</dev/tcp/10.0.1.12/22'")
    assert lab.ssh(pair[0], login, check=False).returncode != 0
    lab.do("stall", instance_id=pair[1], stalled=False)
    wait(lambda: lab.ssh(pair[0], login, check=False).returncode == 0, "the node to continue")


def test_a_node_that_ends_by_itself_is_reported(lab: Lab) -> None:
    node = lab.boot(5, "poweroff")
    wait(lambda: node in lab.do("exits"), "the notice")
    state = next(state for state in lab.do("nodes") if state["instance_id"] == node)
    assert not state["alive"]
    assert Path(state["console"]).exists()
    lab.do("kill", instance_id=node)
    assert node not in {state["instance_id"] for state in lab.do("nodes")}


_REMEMBERS = """
mkdir -p /srv/shared /etc/systemd/system/multi-user.target.wants
cd /root
unit=/etc/systemd/system/some.service
printf '[Service]\\nExecStart=/bin/sh /root/service\\nRestart=on-failure\\nRestartSec=0.1\\n' > $unit
ln -s $unit /etc/systemd/system/multi-user.target.wants/
# It fails once, and finds what it needs mounted.
echo 'echo x >> /root/began; [ -e /srv/shared/file ] && [ $(wc -l < /root/began) = 2 ] && exec sleep 1000' > service
echo 'fs-1:/ /srv/shared efs _netdev,tls 0 0' > /etc/fstab
# They take a moment, in which a cloud-init that does not wait enables one service more.
for number in 1 2 3 4 5; do
  mkdir /srv/$number; echo "fs-1:/ /srv/$number efs _netdev,tls 0 0" >> /etc/fstab
done
wants=/etc/systemd/system/multi-user.target.wants
printf '[Service]\\nExecStart=/usr/bin/touch /root/too-early\\n' > /etc/systemd/system/late.service
printf "#!/bin/sh\\necho x >> /root/boots; ln -s ../late.service $wants\\n" > /var/lib/cloud/scripts/per-boot/count
chmod +x /var/lib/cloud/scripts/per-boot/count
echo x >> /root/launches; echo x >> /root/boots
"""


def test_a_rebooting_node_keeps_disk_and_address_and_starts_enabled_services(lab: Lab, pair: tuple[str, str]) -> None:
    (lab.state / "efs/fs-1/file").touch()
    node = lab.boot(8, _REMEMBERS)
    lab.wait_booted(node)
    lab.ssh(node, "touch /etc/kept /home/kept /tmp/lost /run/lost /dev/shm/lost; setsid -f sleep 1000 >/dev/null 2>&1")
    _reboot(lab, node, lambda: lab.do("reboot", instance_id=node))
    wait(lambda: lab.ssh(node, "pgrep -fx 'sleep 1000'", check=False).returncode == 0, "the service")
    wait(lambda: lab.ssh(node, "wc -l < /root/boots", check=False).stdout == "2\n", "the scripts of this boot")
    looks = "cat /root/began | wc -l; pgrep -fxc 'sleep 1000'; ls /etc/kept /home/kept; wc -l < /root/launches"
    assert lab.ssh(node, looks).stdout.split() == ["2", "1", "/etc/kept", "/home/kept", "1"]
    ignored = lab.ssh(node, "sed -n s/^SigIgn:.//p /proc/$(pgrep -fx 'sleep 1000')/status").stdout
    assert not int(ignored, 16) & 1 << (signal.SIGINT - 1), "a service hears SIGINT"
    assert lab.ssh(node, "ls /root/too-early", check=False).stdout == "", "enabled too late for this boot"
    assert lab.ssh(node, "ls /tmp/lost /run/lost /dev/shm/lost", check=False).stdout == ""
    assert lab.ssh(pair[0], "ssh 10.0.1.18 hostname").stdout == "ip-10-0-1-18\n"
    _reboot(lab, node, lambda: lab.ssh(node, "reboot", check=False))
    wait(lambda: lab.ssh(node, "wc -l < /root/boots", check=False).stdout == "3\n", "the scripts of each boot")
    _reboot_as_it_boots(lab, node)
    assert node not in lab.do("exits")
    lab.do("kill", instance_id=node)
    assert not (lab.state / "nodes" / node).exists()


_READS_NOTHING = "import socket; peer = socket.create_server(('', 7000)).accept(); peer[0].recv(1); input()"
_SENDS_MORE = "import socket; socket.create_connection(('10.0.1.11', 7000)).sendall(bytes(1 << 28))"


def test_a_rebooted_node_alone_has_its_address(lab: Lab, pair: tuple[str, str]) -> None:
    """A connection with unsent data outlives its process, and so does the network that the node had."""
    lab.ssh(pair[0], f"mkfifo /tmp/wait; (python3 -c {shlex.quote(_READS_NOTHING)} <>/tmp/wait >&0 2>&0 &)")
    node = lab.boot(14)
    lab.wait_booted(node)
    lab.ssh(node, f"setsid -f python3 -c {shlex.quote(_SENDS_MORE)} >/dev/null 2>&1; sleep 1")
    _reboot(lab, node, lambda: lab.do("reboot", instance_id=node))
    answers = [(time.sleep(0.5), lab.ssh(node, "true", check=False))[1] for _ in range(12)]
    assert [answer.stderr for answer in answers if answer.returncode] == []
    lab.ssh(pair[0], "pkill -f 'create_server'")
    lab.do("kill", instance_id=node)


def test_a_node_that_does_not_shut_down_is_reset() -> None:
    if os.geteuid():
        pytest.skip("needs root")
    with a_lab("root") as lab:
        node = lab.boot(1)
        lab.wait_booted(node)
        os.kill(_pid_of(lab, node), signal.SIGSTOP)
        _reboot(lab, node, lambda: lab.do("reboot", instance_id=node))


def _reboot(lab: Lab, node: str, ask: Callable[[], object]) -> None:
    before = _pid_of(lab, node)
    ask()
    wait(lambda: _pid_of(lab, node) != before, "another process 1", timeout_s=60)
    wait(lambda: lab.ssh(node, "true", check=False).returncode == 0, "sshd", timeout_s=60)
    assert not Path(f"/proc/{before}").exists()


def _reboot_as_it_boots(lab: Lab, node: str) -> None:
    """Request a second reboot as soon as the first has started a new process 1."""
    for _ in range(2):
        before = _pid_of(lab, node)
        lab.do("reboot", instance_id=node)
        wait(lambda before=before: _pid_of(lab, node) not in (0, before), "another process 1", timeout_s=60)
    wait(lambda: lab.ssh(node, "true", check=False).returncode == 0, "sshd", timeout_s=60)


def _pid_of(lab: Lab, node: str) -> int:
    return next(state["pid"] for state in lab.do("nodes") if state["instance_id"] == node)


def test_user_data_that_fails_says_so_on_the_console(lab: Lab) -> None:
    node = lab.boot(6, "echo some words >&2; exit 3")
    log = lab.state / "nodes" / node / "console.log"
    wait(lambda: "user data ended with status 3" in log.read_text(), "the end")
    assert "some words" in log.read_text()
    lab.do("kill", instance_id=node)


def test_the_dialer_names_a_missing_node(lab: Lab) -> None:
    argv = [sys.executable, "-IS", str(DIAL), f"{lab.state}/dial.sock", "203.0.113.7", "22"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=10)
    assert (done.returncode, done.stderr) == (
        1,
        "phalanx: 203.0.113.7 belongs to no running instance of the local cloud\n",
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
        lab.ssh(node, "useradd -m -u 2000 phalanx && runuser -u phalanx -- touch /home/phalanx/file")
        pid = lab.do("nodes")[0]["pid"]
        assert Path(f"/proc/{pid}/ns/user").readlink() == Path("/proc/self/ns/user").readlink()


@pytest.mark.parametrize("end", ["stop", "killed"])
def test_at_the_end_nothing_is_left(end: str) -> None:
    if os.geteuid():
        pytest.skip("range mode without newuidmap needs root")
    with a_lab("range") as lab:
        lab.wait_booted(lab.boot(1))
        pids = lab.pids()
        assert len(pids) >= 4
        if end == "stop":
            lab.stop()
            assert not (lab.state / "nodes").exists()
            assert not (lab.state / "image").exists()
        else:
            lab.process.send_signal(signal.SIGKILL)
            lab.process.wait(10)
        wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the end of all processes")
        assert str(lab.state) not in Path("/proc/self/mounts").read_text()


def test_the_users_own_account_is_root_in_single_mode() -> None:
    with a_lab_of("single-user") as lab:
        lab.wait_booted(lab.boot(1, "touch /opt/file"))
        pid = lab.do("nodes")[0]["pid"]
        assert (Path("/proc") / str(pid)).stat().st_uid == pwd.getpwnam(str(lab.user)).pw_uid
