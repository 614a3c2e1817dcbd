"""Nodes of the local cloud end, are killed and reboot, and leave nothing behind, in each uid mode."""

from __future__ import annotations

import base64
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from node_lab import DIAL, Lab, a_lab, wait
from processes import Process, wait_until_gone

pytestmark = pytest.mark.cluster


def test_a_killed_node_is_gone_and_its_peers_notice(lab: Lab, pair: tuple[str, str]) -> None:
    node = lab.boot(3)
    lab.wait_booted(node)
    init = lab.process_of(node)
    assert init.lives
    watch = _connect_from(lab, pair[0], "10.0.1.13", patience_s=60)
    lab.do("kill", instance_id=node)
    assert watch.communicate(timeout=300)[0].strip() == "closed"
    assert not init.lives
    assert not (lab.state / "nodes" / node).exists()
    lab.do("kill", instance_id=node)


def test_a_silently_killed_node_stops_answering_and_can_boot_again(lab: Lab, pair: tuple[str, str]) -> None:
    node = lab.boot(4)
    lab.wait_booted(node)
    watch = _connect_from(lab, pair[0], "10.0.1.14", patience_s=2)
    lab.do("kill", instance_id=node, silent=True)
    assert watch.communicate(timeout=300)[0].strip() == "silent"
    lab.boot(4)
    lab.wait_booted(node)
    lab.do("kill", instance_id=node)


def _connect_from(lab: Lab, node: str, address: str, patience_s: int) -> subprocess.Popen[str]:
    """On `node`, hold a connection to sshd at `address` and print what becomes of it within so many seconds."""
    program = (
        "import socket, sys; s = socket.create_connection((sys.argv[1], 22), 60); s.recv(99); "
        "open('/tmp/connected', 'w').close(); s.settimeout(float(sys.argv[2]))\n"
        "try: s.recv(9); print('closed')\n"
        "except TimeoutError: print('silent')\n"
        "except OSError: print('closed')\n"
    )
    encoded = base64.b64encode(program.encode()).decode()
    lab.ssh(node, f"rm -f /tmp/connected; echo {encoded} | base64 -d > /tmp/watch.py")
    proxy = f"{sys.executable} -IS {DIAL} {lab.state}/dial.sock %h %p"
    argv = ["ssh", "-F", "none", "-i", str(lab.key), "-o", "ProxyUseFdpass=yes", "-o", f"ProxyCommand={proxy}"]
    argv += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
    command = [*argv, f"root@{node}", f"python3 /tmp/watch.py {address} {patience_s}"]
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    wait(lambda: lab.ssh(node, "test -e /tmp/connected", check=False).returncode == 0, "the connection")
    return watch


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
    lab.reboot(node)
    wait(lambda: lab.ssh(node, "pgrep -fx 'sleep 1000'", check=False).returncode == 0, "the service")
    wait(lambda: lab.ssh(node, "wc -l < /root/boots", check=False).stdout == "2\n", "the scripts of this boot")
    looks = "cat /root/began | wc -l; pgrep -fxc 'sleep 1000'; ls /etc/kept /home/kept; wc -l < /root/launches"
    assert lab.ssh(node, looks).stdout.split() == ["2", "1", "/etc/kept", "/home/kept", "1"]
    ignored = lab.ssh(node, "sed -n s/^SigIgn:.//p /proc/$(pgrep -fx 'sleep 1000')/status").stdout
    assert not int(ignored, 16) & 1 << (signal.SIGINT - 1), "a service hears SIGINT"
    assert lab.ssh(node, "ls /root/too-early", check=False).stdout == "", "enabled too late for this boot"
    assert lab.ssh(node, "ls /tmp/lost /run/lost /dev/shm/lost", check=False).stdout == ""
    assert lab.ssh(pair[0], "ssh 10.0.1.18 hostname").stdout == "ip-10-0-1-18\n"
    lab.reboot(node, lambda: lab.ssh(node, "reboot", check=False))
    wait(lambda: lab.ssh(node, "wc -l < /root/boots", check=False).stdout == "3\n", "the scripts of each boot")
    _reboot_as_it_boots(lab, node)
    assert node not in lab.do("exits")
    lab.do("kill", instance_id=node)
    assert not (lab.state / "nodes" / node).exists()


_READS_NOTHING = "import socket; peer = socket.create_server(('', 7000)).accept(); peer[0].recv(1); input()"
_SENDS_MORE = (
    "import socket; there = socket.create_connection(('10.0.1.11', 7000)); open('/tmp/sends', 'w').close();"
    " there.sendall(bytes(1 << 28))"
)


def test_a_rebooted_node_alone_has_its_address(lab: Lab, pair: tuple[str, str]) -> None:
    """A connection with unsent data outlives its process, and so does the network that the node had."""
    lab.ssh(pair[0], f"mkfifo /tmp/wait; (python3 -c {shlex.quote(_READS_NOTHING)} <>/tmp/wait >&0 2>&0 &)")
    node = lab.boot(14)
    lab.wait_booted(node)
    sends = f"setsid -f python3 -c {shlex.quote(_SENDS_MORE)} >/dev/null 2>&1"
    lab.ssh(node, f"{sends}; until [ -e /tmp/sends ]; do sleep 0.1; done; sleep 1")
    lab.reboot(node)
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
        os.kill(lab.pid_of(node), signal.SIGSTOP)
        lab.reboot(node)


def _reboot_as_it_boots(lab: Lab, node: str) -> None:
    """Request a second reboot as soon as the first has started a new process 1."""
    for _ in range(2):
        before = lab.process_of(node)
        lab.do("reboot", instance_id=node)
        wait(lambda before=before: lab.process_of(node) not in (Process(0, 0), before), "another process 1")
    wait(lambda: lab.ssh(node, "true", check=False).returncode == 0, "sshd")


@pytest.mark.parametrize("end", ["stop", "killed"])
def test_at_the_end_nothing_is_left(end: str) -> None:
    if os.geteuid():
        pytest.skip("range mode without newuidmap needs root")
    with a_lab("range") as lab:
        lab.wait_booted(lab.boot(1))
        processes = lab.processes()
        assert len(processes) >= 4
        if end == "stop":
            lab.stop()
            assert not (lab.state / "nodes").exists()
            assert not (lab.state / "image").exists()
        else:
            lab.process.send_signal(signal.SIGKILL)
            lab.process.wait(60)
        assert not wait_until_gone(processes)
        assert str(lab.state) not in Path("/proc/self/mounts").read_text()


def test_a_stopped_machine_starts_with_its_disk_and_without_its_user_data(lab: Lab) -> None:
    script = "date +%s%N >>/root/ran; trap 'echo told >/root/told; exit' TERM; sleep 600 & wait $!"
    node = lab.boot(6, f"echo x >/dev/shm/x; mkdir -p /opt/dlami/nvme; sh -c {shlex.quote(script)} &", local_disks=True)
    lab.wait_booted(node)
    wait(lambda: lab.ssh(node, "cat /root/ran", check=False).stdout != "", "the script")
    ran = lab.ssh(node, "echo fast >/opt/dlami/nvme/file; cat /root/ran").stdout
    before = lab.pid_of(node)
    lab.do("stop", instance_id=node)
    assert node not in lab.do("exits"), "a stop that was asked for is no end by itself"
    (state,) = (state for state in lab.do("nodes") if state["instance_id"] == node)
    assert not state["alive"]
    lab.do("stop", instance_id=node)
    lab.do("start", instance_id=node)
    wait(lambda: lab.ssh(node, "true", check=False).returncode == 0, "sshd")
    assert lab.pid_of(node) != before
    assert lab.ssh(node, "cat /root/ran /root/told; ls /dev/shm /opt/dlami/nvme").stdout == (
        f"{ran}told\n/dev/shm:\n\n/opt/dlami/nvme:\n"
    )
    lab.do("kill", instance_id=node)
