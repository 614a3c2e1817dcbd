"""A job gets in the way of the head: it hinders its proof that nodes accept logins, or fills its disk.

It must not get any node terminated or replaced, nor stop the head's agent.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator

import pytest
from benchmarks.drill.strikes import AGENT_COMMAND
from local_clouds import break_on_purpose, wait_for_roster
from terminals import SPEC, Terminal, a_cluster, read_until

from phalanx.node.roster import Roster

pytestmark = pytest.mark.cluster

KEY = "/etc/ssh/phalanx/id_ed25519"
# Ends every ssh on the head that it may, once it has tried to make its output large, and notes what it has done.
HINDER = """
import os, signal, time
end = time.monotonic() + 300
while time.monotonic() < end:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if open(f"/proc/{pid}/comm").read() != "ssh\\n":
                continue
            try:
                os.ftruncate(os.open(f"/proc/{pid}/fd/1", os.O_RDWR), 1 << 20)
                print("made its output large", flush=True)
            except OSError:
                pass
            os.kill(int(pid), signal.SIGKILL)
            print("ended it", flush=True)
        except OSError:
            pass
"""
# Takes all inodes, which costs this machine less memory than all bytes.
FILL = """
import itertools, os
os.makedirs("/var/tmp/full", exist_ok=True)
try:
    for number in itertools.count():
        os.close(os.open(f"/var/tmp/full/{number}", os.O_CREAT))
except OSError as full:
    print(full.strerror)
"""
FULL = "No space left on device\n"
EMPTY = "rm -rf /var/tmp/full"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Terminal]:
    with a_cluster(
        SPEC.replace("name: contract", "name: hindered").replace("nodes: 4\nmin: 4", "nodes: 2\nmin: 2")
    ) as terminal:
        if json.loads(terminal.phalanx("local", "status", "--json").stdout)["mode"] == "single":
            pytest.skip("in single mode all accounts are one")
        yield terminal


def members(terminal: Terminal) -> dict[str, str]:
    nodes = json.loads(terminal.phalanx("nodes", "--json").stdout)
    return {node["name"]: node["instance_id"] for node in nodes if node["state"] == "ready"}


def test_a_job_can_t_spoil_the_key_with_which_nodes_log_in_to_each_other(cluster: Terminal):
    spoil = f"chmod u+w {KEY}; echo spoilt >>{KEY}; echo spoilt >{KEY}; mv {KEY} /tmp/; rm -f {KEY}"
    cluster.on("head", spoil, check=False)
    assert cluster.on("head", "ssh -o BatchMode=yes deeplearning-worker2 echo in") == "in\n"


def test_no_job_ends_the_head_s_logins_nor_writes_to_their_output(cluster: Terminal):
    before = members(cluster)
    code = base64.b64encode(HINDER.encode()).decode()
    cluster.on(
        "head", f"echo {code} | base64 -d >/tmp/hinder.py; setsid nohup python3 /tmp/hinder.py >/tmp/done 2>&1 &"
    )
    # A new agent proves all nodes again.
    break_on_purpose(cluster, end={"instance_id": before["deeplearning-worker1"], "command": AGENT_COMMAND})
    try:
        assert "has 3 of 3 nodes" in cluster.phalanx("scale", "3", "--yes", timeout_s=240).stdout
        after = members(cluster)
        assert {name: after.get(name) for name in before} == before
        assert cluster.on("head", "cat /tmp/done") == ""
    finally:
        cluster.on("head", "pkill -f /tmp/hinder.py", check=False)


def fill(terminal: Terminal, node: str) -> None:
    code = base64.b64encode(FILL.encode()).decode()
    assert terminal.on(node, f"echo {code} | base64 -d | python3 -") == FULL


def full_disks(terminal: Terminal) -> list[str]:
    return json.loads(terminal.phalanx("status", "--json").stdout)["full_disks"]


def wait_until_full(terminal: Terminal, names: list[str]) -> None:
    end = time.monotonic() + 60
    while full_disks(terminal) != names:
        assert time.monotonic() < end, full_disks(terminal)
        time.sleep(0.5)


def test_a_job_that_fills_the_head_s_disk_stops_neither_its_agent_nor_its_user(cluster: Terminal):
    cluster.phalanx("run", "--detach", "--name", "ended", "--launcher", "exec", "--", "true")
    cluster.phalanx("run", "--detach", "--name", "running", "--launcher", "exec", "--", "sleep", "600")
    cluster.phalanx("logs", "--follow", "ended")
    fill(cluster, "head")
    try:
        wait_until_full(cluster, ["deeplearning-worker1"])
        assert "full" in json.loads(cluster.phalanx("why", "--json").stdout)["cause"]
        for arguments in (("logs", "ended"), ("stop", "running"), ("jobs", "--prune", "0s", "--yes")):
            cluster.phalanx(*arguments)
        # What the job had taken is free again.
        fill(cluster, "head")
        # It can't prove new nodes: `scale`, which waits for them, says why.
        first = cluster.start("scale", "4", "--yes")
        read_until(first, "the disk of deeplearning-worker1 is full")
        second = cluster.start("scale", "2", "--yes")
        said, _ = first.communicate(timeout=60)
        assert (first.returncode, "another number of nodes" in said) == (6, True), said
        second.kill()
        second.communicate()
        # Its membership goes on: a node that is lost is no member, and another takes its place.
        lost = members(cluster)["deeplearning-worker2"]
        break_on_purpose(cluster, kill={"instance_id": lost})

        def is_replaced(roster: Roster) -> bool:
            node = roster.find("deeplearning-worker2")
            return node is not None and node.instance_id != lost

        wait_for_roster(cluster, is_replaced, 200)
    finally:
        cluster.on("head", EMPTY)
    wait_until_full(cluster, [])
    assert cluster.on("head", "ssh -o BatchMode=yes deeplearning-worker2 echo in") == "in\n"
