"""A job on a local node tries to fill this machine's memory: files, shared memory and processes are limited."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_lab import Lab, a_lab, wait

pytestmark = pytest.mark.cluster

NODES = 3
MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
# The kernel's memory for an inode and its name, which no size includes.
INODE_BYTES = 1024


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab("range" if os.geteuid() == 0 else "single") as lab:
        for number in range(1, NODES + 1):
            lab.wait_booted(lab.boot(number))
        yield lab


def test_the_files_of_all_nodes_together_leave_this_machine_half_of_its_memory(lab):
    """In all directories that a job may write to; a node's volumes shrink as other nodes boot."""
    volumes = [volume for node in nodes(lab) for volume in volumes_of(lab, node)]
    assert len(volumes) >= 2 * NODES
    assert sum(size for size, _inodes in volumes) <= MEMORY_BYTES // 2
    assert sum(inodes for _size, inodes in volumes) * INODE_BYTES <= MEMORY_BYTES // 16


def test_a_full_volume_is_a_full_disk_and_no_more(lab):
    node = nodes(lab)[0]
    for directory in ("/tmp", "/var/tmp", "/dev/shm"):
        too_much = f"fallocate -l $(($(stat -fc '%S * %b' {directory}) + 4096)) {directory}/file"
        assert "No space left on device" in lab.ssh(node, too_much, check=False).stderr
    many = "mkdir /dev/shm/many && cd /dev/shm/many && seq 50000 | xargs -n 1000 touch 2>&1 | tail -n 1"
    assert "No space left on device" in lab.ssh(node, many).stdout
    lab.ssh(node, "rm -rf /dev/shm/many")


def test_a_console_is_a_file_of_this_machine_with_a_limit(lab):
    """Root on the node prints there, and appends to the log that shows it."""
    more = "head -c 40000000 /dev/zero >>/var/log/cloud-init-output.log"
    node = lab.boot(NODES + 1, f"head -c 40000000 /dev/zero | tr '\\0' x; {more}; touch /run/printed")
    wait(lambda: lab.ssh(node, "ls /run/printed", check=False).stdout != "", "the end of the user data")
    (state,) = (state for state in lab.do("nodes") if state["instance_id"] == node)
    assert 16 << 20 <= Path(state["console"]).stat().st_size < 17 << 20
    lab.do("kill", instance_id=node)


def test_a_job_ends_at_a_limit_of_processes_and_harms_no_other_node(lab):
    """The limit is Linux's for a machine with the memory of the node's type, if this machine allows that four times."""
    first, second = nodes(lab)[:2]
    assert job(lab, first, _FORK).split() == ["EAGAIN", "True"]
    assert lab.ssh(second, "seq 3 | xargs -P 3 -n 1 echo | wc -l").stdout == "3\n"
    assert job(lab, first, "print('again')") == "again\n"


def test_four_nodes_can_t_use_up_half_of_this_machine_s_process_numbers(lab):
    """Since 6.14, Linux shows a higher pid_max in the namespaces of the local cloud than holds."""
    most = int(Path("/proc/sys/kernel/pid_max").read_text()) // 2
    large = lab.boot(NODES + 2, memory_mib=1 << 20)
    lab.wait_booted(large)
    assert 0 < int(lab.ssh(large, "ulimit -Hu").stdout) <= most // 4
    lab.do("kill", instance_id=large)


def test_a_node_s_processes_may_open_as_many_files_at_first_as_a_session_of_systemd_s(lab):
    assert lab.ssh(nodes(lab)[0], "ulimit -Sn").stdout == "1024\n"


def test_a_job_can_t_get_memory_by_other_doors(lab):
    """By System V's objects, which outlive processes, and by a tmpfs in a user namespace."""
    node = nodes(lab)[0]
    assert job(lab, node, _SEGMENT) == "ENOSPC\n"
    assert job(lab, node, _TMPFS) == "ENOSPC\n"


_FORK = """
import errno, os, signal
children = []
try:
    while len(children) < 4000:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        children.append(pid)
except OSError as problem:
    print(errno.errorcode[problem.errno], len(children) <= 2048)
for pid in children:
    os.kill(pid, 9)
for pid in children:
    os.waitpid(pid, 0)
"""
_SEGMENT = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
# A segment for whoever asks, of a GiB, none of which is there yet.
got = libc.shmget(0, ctypes.c_size_t(1 << 30), 0o1600)
print(errno.errorcode[ctypes.get_errno()] if got < 0 else libc.shmctl(got, 0, None) or "a segment")
"""
_TMPFS = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
done = libc.unshare(0x10000000 | 0x20000)
print(errno.errorcode[ctypes.get_errno()] if done else "a namespace")
"""


def job(lab: Lab, node: str, program: str) -> str:
    """Return what a program prints that runs as an ordinary account of the node, if the mode has any."""
    packed = base64.b64encode(program.encode()).decode()
    lab.ssh(node, f"echo {packed} | base64 -d > /tmp/job")
    account = "id job > /dev/null 2>&1 || useradd -m -u 2000 job; runuser -u job -- "
    return lab.ssh(node, f"{account if lab.mode == 'range' else ''}python3 -I /tmp/job").stdout


def nodes(lab: Lab) -> list[str]:
    return [node["instance_id"] for node in lab.do("nodes")]


def volumes_of(lab: Lab, node: str) -> list[list[int]]:
    """Bytes and inodes of each file system in memory that the node can write to."""
    each = "stat -f -c '%i %S %b %c' $(awk '$3 == \"tmpfs\" && $4 ~ /^rw/ {print $2}' /proc/mounts)"
    lines = {tuple(line.split()) for line in lab.ssh(node, each).stdout.splitlines()}
    return [[int(block) * int(count), int(inodes)] for _, block, count, inodes in lines]
