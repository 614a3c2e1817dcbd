"""Root on a local node reports without end: by the pipe that tells when it is up, and by its console.

One single-threaded process reads both, for all nodes; while it waits for one of them, the local cloud can do nothing.
"""

from __future__ import annotations

import base64
import shutil
import subprocess

import pytest
from node_lab import Lab, wait

pytestmark = pytest.mark.cluster

# The dynamic linker loads it into each program of the node; process 1 then has the pipe as its file 3.
_PRELOADED = """
#include <unistd.h>
static char *words[] = {"python3", "-I", "/root/reporter.py", 0}, *none[] = {0};
__attribute__((constructor)) static void start(void) {
  if (getpid() == 1 && fork() == 0) {
    execve("/usr/bin/python3", words, none);
    _exit(1);
  }
}
"""
# Works once process 1 has closed its own end: the node is up.
_BEGIN = """
import os, socket, time
while "3" in os.listdir("/proc/1/fd"):
    time.sleep(0.01)
os.unlink("/etc/ld.so.preload")
"""
_FLOOD = f"""{_BEGIN}
said = "taken"
try:
    for _ in range(2048):
        os.write(3, bytes(4096))
except BrokenPipeError:
    said = "refused"
open("/root/said.new", "w").write(said)
os.rename("/root/said.new", "/root/said")
"""
_SOCKET = "/run/efs.host/fs-1/reports"
_GIVE = f"""{_BEGIN}
with socket.socket(socket.AF_UNIX) as there:
    there.connect("{_SOCKET}")
    socket.send_fds(there, [b"x"], [1, 3])
"""
_HOLD = f"""
import os, socket
with socket.socket(socket.AF_UNIX) as door:
    door.bind("{_SOCKET}")
    door.listen()
    print("listening", flush=True)
    there, _ = door.accept()
_, (console, status), _, _ = socket.recv_fds(there, 1, 2)
open("/run/holding", "w").write(str(os.getpid()))
while True:
    os.write(console, b"x" * 65536)
"""
_READ_THE_CONSOLE = """
import os
readers = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        console = os.open("/proc/1/fd/1", os.O_RDONLY | os.O_NONBLOCK)
        while True:
            try:
                os.read(console, 65536)
            except BlockingIOError:
                pass
    readers.append(pid)
console = os.open("/proc/1/fd/1", os.O_WRONLY)
for _ in range(20000):
    os.write(console, b"x")
for pid in readers:
    os.kill(pid, 9)
"""


@pytest.fixture
def preloaded(tmp_path) -> bytes:
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("there is no compiler")
    source, made = tmp_path / "preloaded.c", tmp_path / "preloaded.so"
    source.write_text(_PRELOADED)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source], check=True, timeout=120)
    return made.read_bytes()


def plant(lab: Lab, node: str, path: str, program: str | bytes) -> None:
    packed = base64.b64encode(program if isinstance(program, bytes) else program.encode()).decode()
    lab.ssh(node, f"echo {packed} | base64 -d > {path}")


def reports(lab: Lab, number: int, program: str, preloaded: bytes) -> str:
    """Boot a node whose next process 1 starts a program that has the pipe; return its id once it has booted again."""
    node = lab.boot(number)
    lab.wait_booted(node)
    plant(lab, node, "/root/reporter.py", program)
    plant(lab, node, "/root/preloaded.so", preloaded)
    plant(lab, node, "/etc/ld.so.preload", "/root/preloaded.so\n")
    lab.reboot(node)
    return node


def test_a_node_that_is_up_reports_no_more(lab, preloaded):
    node = reports(lab, 4, _FLOOD, preloaded)
    wait(lambda: lab.ssh(node, "ls /root/said", check=False).returncode == 0, "the end of the flood")
    assert lab.ssh(node, "cat /root/said").stdout == "refused"
    lab.do("kill", instance_id=node)


def test_nobody_waits_for_the_end_of_what_another_nodes_process_still_writes(lab, pair, preloaded):
    """Nodes share directories, and so sockets, by which one gives its files to another."""
    accomplice = pair[1]
    plant(lab, accomplice, "/root/hold.py", _HOLD)
    lab.ssh(accomplice, f"rm -f {_SOCKET} /run/holding; setsid -f python3 -I /root/hold.py >/root/held 2>&1")
    wait(lambda: "listening" in lab.ssh(accomplice, "cat /root/held").stdout, "the accomplice")
    node = reports(lab, 5, _GIVE, preloaded)
    wait(lambda: lab.ssh(accomplice, "test -s /run/holding", check=False).returncode == 0, "the gift")
    lab.do("kill", instance_id=node)
    assert node not in [state["instance_id"] for state in lab.do("nodes")]
    lab.ssh(accomplice, "kill $(cat /run/holding)", check=False)


def test_a_node_that_reads_its_own_console_takes_nothing_from_others(lab, pair):
    plant(lab, pair[0], "/root/read.py", _READ_THE_CONSOLE)
    lab.ssh(pair[0], "python3 -I /root/read.py")
    assert {state["instance_id"] for state in lab.do("nodes") if state["alive"]} >= set(pair)
