"""Root on a local node attacks this machine: its files, its kernel, its processes, and the other nodes."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from node_lab import Lab, wait

from localcloud.nodes.machine import mac_of

pytestmark = pytest.mark.cluster


def does(lab: Lab, node: str, program: str) -> Any:
    """Run a program as root on the node; return the JSON in its last line."""
    packed = base64.b64encode(program.encode()).decode()
    done = lab.ssh(node, f"echo {packed} | base64 -d | python3 -I -")
    return json.loads(done.stdout.splitlines()[-1])


def process_one_of(lab: Lab, node: str) -> int:
    return next(state["pid"] for state in lab.do("nodes") if state["instance_id"] == node)


_EACH_MOUNT = """
import ctypes, json
libc = ctypes.CDLL(None, use_errno=True)
# What is tried here must not break the node.
assert libc.unshare(0x20000) == 0
assert libc.mount(None, b"/", None, 1 << 18 | 16384, None) == 0
mounts = [line.split() for line in open("/proc/self/mountinfo")]
done = []
for fields in reversed(mounts):
    point, options = fields[4], fields[5].split(",")
    if %s:
        done.append(point)
print(json.dumps(done))
"""
_REMOUNT = '"ro" in options and libc.mount(None, point.encode(), None, 32 | 4096, None) == 0'
_UNMOUNT = 'point != "/" and libc.umount2(point.encode(), 2) == 0'


def test_root_on_a_node_can_t_make_the_hosts_files_writable(lab, pair):
    assert set(does(lab, pair[0], _EACH_MOUNT % _REMOUNT)) <= {"/sys"}


def test_root_on_a_node_can_t_look_below_what_is_mounted(lab, pair):
    """Its mounts of the kernel's file systems hide nothing."""
    own = {"/proc", "/sys", "/sys/devices/system/cpu/online"}
    assert {point for point in does(lab, pair[0], _EACH_MOUNT % _UNMOUNT) if not point.startswith("/tmp/")} <= own


_BUCKETS = """
import glob, json
print(json.dumps(glob.glob("/run/efs.host/s3/*")))
"""


def test_root_on_a_node_sees_no_mounted_bucket_of_another_vpc(lab, pair):
    mounted = lab.state / "s3/vpc-another/their-bucket"
    mounted.mkdir(parents=True)
    try:
        assert does(lab, pair[0], _BUCKETS) == []
    finally:
        mounted.rmdir()
        mounted.parent.rmdir()


_PLANT_EXPORTS = """
import json, os
for top, _, files in os.walk("/run/efs.host"):
    if "/fs-" in top:
        continue
    for address in ("10.0.1.12", "10.0.1.15"):
        try:
            os.makedirs(f"{top}/{address}/data/planted")
        except OSError:
            pass
    # Not the domain and addresses of its own mounts, which later tests on this node need.
    for name in files:
        if name == "domain" or name.endswith("address"):
            continue
        try:
            with open(f"{top}/{name}", "a") as file:
                print("/data fs-1", file=file)
        except OSError:
            pass
tops = ("/run/efs.host/trees", "/run/efs.host/exports")
print(json.dumps([name for top in tops for _, names, _ in os.walk(top) for name in names]))
"""
_EXPORT = "mkdir -p /etc/exports.d; echo '/data *(rw)' >/etc/exports.d/data.exports; exportfs -ra && ls -A /data"


def test_root_on_a_node_writes_only_its_own_exports(lab, pair):
    """Where nodes have one account (single), root on each has the rights of the local cloud."""
    if lab.mode == "single":
        pytest.skip("nodes have no id that is not theirs")
    new = lab.boot(5)
    lab.wait_booted(new)
    assert does(lab, pair[0], _PLANT_EXPORTS) == []
    try:
        for node in (pair[1], new):
            assert lab.ssh(node, _EXPORT).stdout == ""
            lab.ssh(node, "touch /data/served")
        assert lab.ssh(pair[0], "mount -t nfs4 10.0.1.15:/data /mnt && ls /mnt && umount /mnt").stdout == "served\n"
        assert lab.ssh(new, "mount -t nfs4 10.0.1.11:/data /mnt", check=False).returncode == 32
    finally:
        lab.do("kill", instance_id=new)
    again = lab.boot(6, address="10.0.1.15")
    lab.wait_booted(again)
    assert lab.ssh(again, "mount -t nfs4 10.0.1.15:/data /mnt", check=False).returncode == 32
    assert lab.ssh(again, _EXPORT).stdout == ""
    lab.reboot(again)
    assert (
        lab.ssh(again, "touch /data/kept && exportfs -ra && mount -t nfs4 10.0.1.15:/data /mnt && ls /mnt").stdout
        == "kept\n"
    )
    lab.do("kill", instance_id=again)


_KERNEL = """
import json, os, subprocess
names = "proc/sys/kernel/core_pattern proc/sysrq-trigger proc/sys/vm/drop_caches proc/sys/fs/file-max"
names += " proc/sys/kernel/modprobe proc/sys/kernel/panic proc/sys/fs/suid_dumpable proc/sys/vm/overcommit_memory"
names += " sys/kernel/mm/transparent_hugepage/enabled sys/power/state sys/devices/system/cpu/cpu1/online"
for kind in ("proc", "sysfs"):
    os.makedirs(f"/tmp/kernel/{kind[:4].rstrip('f')}", exist_ok=True)
    subprocess.run(["mount", "-t", kind, "own", f"/tmp/kernel/{kind[:4].rstrip('f')}"])
subprocess.run("mount -o remount,bind,rw /sys", shell=True)
found = []
for path in [f"{top}/{name}" for top in ("", "/tmp/kernel") for name in names.split()]:
    try:
        os.close(os.open(path, os.O_WRONLY))
        found.append(path)
    except OSError:
        pass
print(json.dumps(found))
"""


def test_root_on_a_node_can_t_change_the_kernel(lab, pair):
    """/proc believes whoever has the number of the kernel's root, whatever user namespace that one is in."""
    assert does(lab, pair[0], _KERNEL) == []


def test_root_on_a_node_has_not_the_number_of_the_kernels_root(lab, pair):
    status = Path(f"/proc/{process_one_of(lab, pair[0])}/status").read_text().splitlines()
    ids = [line.split()[1:] for line in status if line.startswith(("Uid:", "Gid:"))]
    assert "0" not in ids[0] + ids[1]


_PLANT = """
rm -rf /var/tmp /var/log /opt
for place in /var/tmp /var/log /opt; do ln -sfn {victim} $place; done
[ ! -e /.layer ] || {{ mv /.layer/etc /.layer/old; ln -s {victim} /.layer/etc; }}
"""


def test_a_node_that_starts_again_leads_nobody_out_of_its_disk(lab, pair):
    """The process that rebuilds it, as the user, must follow none of the links that root has planted there."""
    victim = lab.state / "efs" / "victim"
    victim.mkdir(mode=0o700)
    (victim / "file").touch()
    if lab.user:
        subprocess.run(["chown", "-R", lab.user, victim], check=True)
    before = [(path.name, path.stat().st_mode, path.stat().st_mtime) for path in (victim, *victim.iterdir())]
    node = lab.boot(3)
    lab.wait_booted(node)
    lab.ssh(node, _PLANT.format(victim=victim), check=False)
    old = process_one_of(lab, node)
    lab.do("reboot", instance_id=node)
    wait(
        lambda: node in lab.do("exits") or process_one_of(lab, node) not in (0, old),
        "the end of its boot",
    )
    lab.do("kill", instance_id=node)
    assert [(path.name, path.stat().st_mode, path.stat().st_mtime) for path in (victim, *victim.iterdir())] == before


_IMPERSONATE = """
import json, subprocess, urllib.request
def become(address, mac):
    changes = f"down; addr flush dev eth0; link set eth0 address {{mac}}"
    changes += f"; addr add {{address}}/16 dev eth0 noprefixroute; link set eth0 up"
    changes += "; route add 10.0.0.1 dev eth0; route add default via 10.0.0.1 dev eth0"
    for command in f"link set eth0 {{changes}}".split("; "):
        subprocess.run(["ip", *command.split()], check=True)
become("{address}", "{mac}")
got = ""
try:
    asked = urllib.request.Request("http://169.254.169.254/latest/api/token", method="PUT")
    asked.add_header("X-aws-ec2-metadata-token-ttl-seconds", "60")
    token = urllib.request.urlopen(asked, timeout=2).read().decode()
    asked = urllib.request.Request("http://169.254.169.254/latest/meta-data/instance-id")
    asked.add_header("X-aws-ec2-metadata-token", token)
    got = urllib.request.urlopen(asked, timeout=2).read().decode()
except OSError:
    pass
finally:
    become("{own}", "{own_mac}")
print(json.dumps(got))
"""


@pytest.mark.parametrize("with_its_mac", [True, False])
def test_root_on_a_node_can_t_be_its_neighbour(lab, pair, with_its_mac):
    """Otherwise the metadata service would return the neighbour's credentials."""
    program = _IMPERSONATE.format(
        address="10.0.1.11",
        own="10.0.1.12",
        mac=mac_of("10.0.1.11" if with_its_mac else "10.0.1.12"),
        own_mac=mac_of("10.0.1.12"),
    )
    packed = base64.b64encode(program.encode()).decode()
    lab.ssh(
        pair[1], f"echo {packed} | base64 -d > /root/be; setsid -f python3 -I /root/be > /root/got 2>&1 < /dev/null"
    )
    wait(lambda: lab.ssh(pair[1], "grep -q . /root/got", check=False).returncode == 0, "the attack's end")
    assert lab.ssh(pair[1], "cat /root/got").stdout == '""\n'


# A router's word (RFC 4861): a way out for all, and a prefix from which whoever hears it takes an address.
_ADVERTISE = """
import json, socket, struct, time
router = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0)
prefix = struct.pack("!BBBBIII", 3, 4, 64, 0xC0, 1800, 1800, 0) + socket.inet_pton(socket.AF_INET6, "2001:db8::")
with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as out:
    out.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
    for _ in range(600):
        try:
            sent = out.sendto(router + prefix, ("ff02::1", 0, 0, socket.if_nametoindex("eth0")))
            break
        except OSError:  # the node is still looking whether its own address is taken
            time.sleep(0.1)
print(json.dumps(sent))
"""


def test_root_on_a_node_can_t_be_its_neighbours_router(lab, pair):
    assert does(lab, pair[1], _ADVERTISE) == 48
    time.sleep(1)
    assert lab.ssh(pair[0], "ip -6 route show default; ip -6 addr show scope global").stdout == ""


_OUTSIDE = """
import json, os, subprocess
found = [f"process {pid}" for pid in range(1, 40000) if os.path.exists(f"/proc/{pid}/root/%s")]
tries = {
    "a device": "mknod /tmp/device b 254 0 && head -c1 /tmp/device",
    "a disk": "mount -t ext4 /dev/vda /mnt",
    "the shelf": "ls /run/efs.host/../../../efs.host/fs-1/../../nodes",
    "a namespace": "nsenter -t 1 -m -p true && nsenter -t 1 -n ip link show vpc",
    "the clock": "date -s 2000-01-01",
    "a module": "modprobe dummy",
    "its size": "mount -o remount,size=100g / || mount -o remount,size=100g /dev/shm",
}
for what, command in tries.items():
    if subprocess.run(command, shell=True, capture_output=True).returncode == 0:
        found.append(what)
print(json.dumps(found))
"""


def test_root_on_a_node_has_no_way_out(lab, pair):
    assert does(lab, pair[0], _OUTSIDE % str(lab.state).strip("/")) == []


_OWN_WORK = """
set -e
mkdir -p /root/a /root/b /root/o/l /root/o/u /root/o/w /root/o/m
mount -t tmpfs none /root/a && mount -t proc none /root/b && test -d /root/b/1
mount -t tmpfs none /root/o/u && mkdir /root/o/u/u /root/o/u/w
options=lowerdir=/root/o/l,upperdir=/root/o/u/u,workdir=/root/o/u/w
mount -t overlay none /root/o/m -o $options 2>/dev/null || mount -t overlay none /root/o/m -o $options,userxattr
umount /root/o/m /root/o/u /root/a /root/b
hostname other && hostname "$(cat /etc/hostname)"
ip rule add pref 1 uidrange {first}-{last} to 169.254.169.254 prohibit && ip rule del pref 1
sysctl -qw net.core.somaxconn=1000
touch /tmp/file && {chown} && mount --bind /tmp /mnt && umount /mnt
"""


def test_root_on_a_node_is_still_root_there(lab, pair):
    chown, first = ("true", 0) if lab.mode == "single" else ("chown 2000:2000 /tmp/file", 2000)
    last = int(lab.ssh(pair[0], "awk '{last = $1 + $3 - 1} END {printf \"%.0f\", last}' /proc/self/uid_map").stdout)
    lab.ssh(pair[0], _OWN_WORK.format(chown=chown, first=first, last=last))
