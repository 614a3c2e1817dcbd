"""Jobs connect to a node's sshd again and again, and say nothing: sshd accepts only so many unfinished logins."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from terminals import Terminal, a_cluster, read_until

pytestmark = pytest.mark.cluster

ATTACKER, OTHER = "worker2", "worker3"
# More than MaxStartups of any node.
_HOLD = """
import os, resource, socket, time
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = []
for _ in range(2100):
    try:
        held.append(socket.create_connection(("deeplearning-master", 22), timeout=60))
    except OSError:
        pass
print("holding", len(held), os.getpid(), flush=True)
time.sleep(600)
"""
# From all addresses of this machine that it can think of, for ever: what sshd ends begins again.
_CROWD = """
import resource, socket, sys, threading, time
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
host, sources = sys.argv[1], [f"127.0.{n}.1" if sys.argv[1].startswith("127") else "" for n in range(1, 33)]
held = []
def connect(source):
    own = []
    while True:
        try:
            own.append(socket.create_connection((host, 22), timeout=60, source_address=(source, 0)))
            own[-1].setblocking(False)
            held.append(1)
        except OSError:
            time.sleep(0.01)
        for connection in own[-200:]:
            try:
                if not connection.recv(4096):
                    raise ConnectionError
            except BlockingIOError:
                pass
            except OSError:
                connection.close()
                own.remove(connection)
for source in sources:
    threading.Thread(target=connect, args=(source,), daemon=True).start()
while len(held) < 1100:
    time.sleep(0.1)
print("holding", flush=True)
time.sleep(600)
"""
_TRIES = 10
SPEC = "name: logins\ncloud: local\nnodes: 2\nmin: 2\ntype: c5.large\nshared: /efs\nkeep: no\n"
_OLDER = """
cp /etc/ssh/sshd_config /etc/ssh/sshd_config.d/60-phalanx.conf /root
sed -i /PerSource/d /etc/ssh/sshd_config /etc/ssh/sshd_config.d/60-phalanx.conf
kill -HUP $(cat /run/sshd.pid)
"""


def test_a_job_that_says_nothing_to_sshd_keeps_no_other_node_out(cluster):
    with cluster.start("ssh", ATTACKER, "--", f"python3 -c '{_HOLD}'") as job:
        _, connected, pid = read_until(job, "holding").split()
        try:
            assert int(connected) > 2000
            assert [cluster.on(OTHER, "ssh deeplearning-master echo in") for _ in range(3)] == ["in\n"] * 3
        finally:
            cluster.on(ATTACKER, f"kill {pid}")


@pytest.fixture(scope="module")
def own() -> Iterator[Terminal]:
    with a_cluster(SPEC) as terminal:
        yield terminal


@contextmanager
def a_crowd(terminal: Terminal, node: str, host: str) -> Iterator[None]:
    with terminal.start("ssh", node, "--", f"exec python3 -c {shlex.quote(_CROWD)} {host}") as job:
        try:
            read_until(job, "holding")
            yield
        finally:
            terminal.on(node, "pkill -f [s]ource_address", check=False)
            job.kill()


def logins_from_here(terminal: Terminal) -> list[str]:
    """Log in to the head again and again, each time by a new connection."""
    config = terminal.state / "clusters/logins/ssh_config"
    ssh = ["ssh", "-F", config, "-o", "ControlMaster=no", "-o", "ControlPath=none", "-o", "BatchMode=yes"]
    command = [*ssh, "deeplearning-worker1", "echo in"]
    return [subprocess.run(command, capture_output=True, text=True, timeout=120).stdout for _ in range(_TRIES)]


def test_a_job_on_the_head_keeps_its_user_in_by_all_addresses_of_the_loopback_device(own: Terminal):
    """sshd counts unfinished logins by address, and 127.0.0.0/8 has 16 million."""
    with a_crowd(own, "head", "127.0.0.1"):
        assert logins_from_here(own) == ["in\n"] * _TRIES
        assert own.on("worker2", "ssh deeplearning-master echo in") == "in\n"


def test_a_job_keeps_nobody_out_of_an_older_sshd_that_does_not_count_by_address(own: Terminal):
    own.phalanx("ssh", "--admin", "head", "--", shlex.join(["sudo", "sh", "-c", _OLDER]))
    with a_crowd(own, "worker2", "deeplearning-master"):
        assert logins_from_here(own) == ["in\n"] * _TRIES
