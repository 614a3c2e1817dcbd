"""A job connects to another node's sshd again and again, and says nothing: sshd accepts so many unfinished logins."""

from __future__ import annotations

import pytest
from terminals import read_until

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


def test_a_job_that_says_nothing_to_sshd_keeps_no_other_node_out(cluster):
    with cluster.start("ssh", ATTACKER, "--", f"python3 -c '{_HOLD}'") as job:
        _, connected, pid = read_until(job, "holding").split()
        try:
            assert int(connected) > 2000
            assert [cluster.on(OTHER, "ssh deeplearning-master echo in") for _ in range(3)] == ["in\n"] * 3
        finally:
            cluster.on(ATTACKER, f"kill {pid}")
