"""The links of the local cloud's nodes: cut, shaped, delayed, without a way out, and of a node that stands still."""

from __future__ import annotations

import shlex

import pytest
from node_lab import Lab, wait

pytestmark = pytest.mark.cluster


def test_a_partition_cuts_and_heals(lab: Lab, pair: tuple[str, str]) -> None:
    reach = "ssh -o ConnectTimeout={} 10.0.1.12 hostname"
    lab.do("partition", instance_id=pair[1], cut=True)
    assert lab.ssh(pair[0], reach.format(1), check=False).returncode != 0
    lab.do("partition", instance_id=pair[1], cut=False)
    wait(lambda: lab.ssh(pair[0], reach.format(30), check=False).returncode == 0, "the healed link")


def _megabits_s(lab: Lab, sender: str, receiver: str, receivers_address: str) -> float:
    """Return how fast 4 MB pass from one node to another; on a busy machine the result may be anything."""
    program = (
        "import socket, time\n"
        "server = socket.create_server(('', 7777))\n"
        "open('/tmp/listens', 'w').close()\n"
        "peer, _ = server.accept()\n"
        "size, began = 0, time.monotonic()\n"
        "while data := peer.recv(1 << 20): size += len(data)\n"
        "print(size * 8 / 1e6 / (time.monotonic() - began))"
    )
    start = f"nohup timeout 600 python3 -c {shlex.quote(program)} >/tmp/rate 2>&1 </dev/null &"
    lab.ssh(receiver, f"rm -f /tmp/listens; {start} until [ -e /tmp/listens ]; do sleep 0.1; done")
    lab.ssh(sender, f"head -c 4M /dev/zero >/dev/tcp/{receivers_address}/7777")
    wait(lambda: lab.ssh(receiver, "cat /tmp/rate").stdout != "", "the receiver's result")
    return float(lab.ssh(receiver, "cat /tmp/rate").stdout)


def test_a_shaped_link_carries_its_rate_both_ways_until_that_is_lifted(lab: Lab, pair: tuple[str, str]) -> None:
    lab.do("shape", instance_id=pair[1], rate_bit_s=20 * 10**6, delay_s=0.0)
    wait(lambda: 10 < _megabits_s(lab, pair[0], pair[1], "10.0.1.12") < 25, "20 Mbit/s to the node")
    wait(lambda: 10 < _megabits_s(lab, pair[1], pair[0], "10.0.1.11") < 25, "20 Mbit/s from the node")
    lab.reboot(pair[1])
    wait(lambda: 10 < _megabits_s(lab, pair[1], pair[0], "10.0.1.11") < 25, "the same after a reboot")
    lab.do("shape", instance_id=pair[1], rate_bit_s=0, delay_s=0.0)
    wait(lambda: _megabits_s(lab, pair[1], pair[0], "10.0.1.11") > 40, "the full rate")


def test_nodes_that_reach_each_other_know_only_the_router(lab: Lab, pair: tuple[str, str]) -> None:
    """Linux keeps 1,024 neighbours in all: 33 nodes that knew each other would be more."""
    assert lab.ssh(pair[0], "ssh -o ConnectTimeout=30 10.0.1.12 hostname").stdout
    for node in pair:
        known = [line.split()[0] for line in lab.ssh(node, "cat /proc/net/arp").stdout.splitlines()[1:]]
        assert known == ["10.0.0.1"]


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
    outside = "timeout {} bash -c '</dev/tcp/169.254.1.1/4566'; echo \\$?"

    def reached(command: str) -> str:
        """From inside the VPC: answers to this machine leave it, too."""
        return lab.ssh(pair[0], f'ssh -o ConnectTimeout=30 10.0.1.16 "{command}"', check=False).stdout

    wait(lambda: reached("echo hello") == "hello\n", "a login from a neighbour")
    assert reached("timeout 30 bash -c '</dev/tcp/169.254.169.254/80'; echo \\$?") == "0\n"
    assert reached(outside.format(1)) == "124\n", "neither dropped nor refused"
    lab.do("give_way_out", instance_id=node)
    # Nobody listens there in this lab: a refusal is an answer.
    assert reached(outside.format(30)) == "1\n"
    lab.do("kill", instance_id=node)


def test_a_node_that_stands_still_accepts_connections_and_continues(lab: Lab, pair: tuple[str, str]) -> None:
    login = "ssh -o ConnectTimeout={} 10.0.1.12 hostname"
    lab.do("stall", instance_id=pair[1], stalled=True)
    lab.ssh(pair[0], "timeout 30 bash -c '</dev/tcp/10.0.1.12/22'")
    assert lab.ssh(pair[0], login.format(1), check=False).returncode != 0
    lab.do("stall", instance_id=pair[1], stalled=False)
    wait(lambda: lab.ssh(pair[0], login.format(30), check=False).returncode == 0, "the node to continue")
