"""A lease and an idle time stop all nodes from inside the cloud, and `up` starts them again with the same data."""

from __future__ import annotations

import json
import time

import pytest
from local_clouds import api

from conftest import a_cluster

pytestmark = pytest.mark.cluster

IDLE_S = 15
SPEC = f"name: limited\ncloud: local\nnodes: 2\nmin: 2\ntype: c5.large\nkeep: no\nidle: {IDLE_S}s\n"
STOPPED_S = 180.0


@pytest.fixture(scope="module")
def terminal():
    with a_cluster(SPEC) as terminal:
        yield terminal


def status(terminal) -> dict:
    return json.loads(terminal.phalanx("status", "--json").stdout)


def wait_until_stopped(terminal) -> None:
    deadline = time.monotonic() + STOPPED_S
    while not status(terminal)["stopped"]:
        assert time.monotonic() < deadline, status(terminal)
        time.sleep(1)


def test_a_cluster_in_use_goes_on_and_an_unused_one_stops_and_starts_again(terminal):
    """A program on a worker alone, which no job of phalanx knows, keeps it going."""
    terminal.on("worker2", f"echo kept > /efs/kept; sleep {IDLE_S + 10}")
    assert not status(terminal)["stopped"]
    wait_until_stopped(terminal)
    refused = terminal.phalanx("run", "--", "true", check=False)
    assert refused.returncode != 0 and "cluster limited has no nodes" in refused.stderr
    groups = api(terminal, "autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    assert [group["DesiredCapacity"] for group in groups] == [0, 0]
    assert "Cluster limited is ready" in terminal.phalanx("up").stdout
    assert terminal.on("worker2", "cat /efs/kept") == "kept\n"


def test_a_lease_ends_whatever_the_nodes_do_and_up_gives_a_new_start(terminal):
    if status(terminal)["stopped"]:
        terminal.phalanx("up")
    # At once: a slow machine would take the cluster for an unused one.
    busy = terminal.start("ssh", "head", "--", "sleep 600")
    assert "ends in" in terminal.phalanx("extend", "8s").stdout
    wait_until_stopped(terminal)
    busy.communicate(timeout=180)
    assert busy.returncode != 0
    assert "has no nodes" in terminal.phalanx("extend", check=False).stderr
    terminal.phalanx("up")
    shown = status(terminal)
    assert (len(shown["nodes"]), shown["lease_left_s"]) == (2, None)
