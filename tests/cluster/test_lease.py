"""A lease and an idle time stop all nodes from inside the cloud, and `up` starts them again with the same data."""

from __future__ import annotations

import json
import time

import pytest
from local_clouds import api, wait_until_stopped
from terminals import a_cluster, read_until

pytestmark = pytest.mark.cluster

IDLE_S = 8
# Nodes are in use from their boot until a test lets them rest: on a slow machine its next command may come too late.
BUSY = """boot: |
  rm -f /efs/.rest
  setsid setpriv --reuid 2000 --clear-groups sh -c 'until [ -e /efs/.rest ]; do sleep 0.2; done' >/dev/null 2>&1 &
"""
SPEC = f"name: limited\ncloud: local\nnodes: 2\nmin: 2\ntype: c5.large\nkeep: no\nidle: {IDLE_S}s\n{BUSY}"
STOPPED_S = 300.0


@pytest.fixture(scope="module")
def terminal():
    with a_cluster(SPEC) as terminal:
        yield terminal


def status(terminal) -> dict:
    return json.loads(terminal.phalanx("status", "--json").stdout)


def test_a_cluster_in_use_goes_on_and_an_unused_one_stops_and_starts_again(terminal):
    """A program on a worker alone, which no job of phalanx knows, keeps it going."""
    program = "echo kept > /efs/kept; touch /efs/.rest; echo begun; until [ -e /efs/.end ]; do sleep 0.2; done"
    with terminal.start("ssh", "worker2", "--", program) as used:
        read_until(used, "begun")
        time.sleep(IDLE_S + 10)
        assert not status(terminal)["stopped"]
        terminal.on("worker2", "touch /efs/.end")
        used.communicate(timeout=STOPPED_S)
    wait_until_stopped(terminal)
    assert status(terminal)["stopped"]
    refused = terminal.phalanx("run", "--", "true", check=False)
    assert refused.returncode == 6 and "limited has no nodes" in refused.stderr
    groups = api(terminal, "autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    assert [group["DesiredCapacity"] for group in groups] == [0, 0]
    assert "Cluster limited is ready" in terminal.phalanx("up").stdout
    assert terminal.on("worker2", "cat /efs/kept") == "kept\n"


def test_a_lease_ends_whatever_the_nodes_do_and_up_gives_a_new_start(terminal):
    busy = terminal.start("ssh", "head", "--", "echo begun; sleep 4711")
    read_until(busy, "begun")
    assert "ends in" in terminal.phalanx("extend", "8s", "--yes").stdout
    wait_until_stopped(terminal)
    busy.communicate(timeout=STOPPED_S)
    assert busy.returncode != 0
    assert "has no nodes" in terminal.phalanx("extend", check=False).stderr
    terminal.phalanx("up")
    shown = status(terminal)
    assert (len(shown["nodes"]), shown["lease_left_s"]) == (2, None)
