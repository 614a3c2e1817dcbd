"""GPUs of the local cloud: none, or stand-ins, by which slots, visible devices and the check of GPUs run as on AWS."""

from __future__ import annotations

import json

import pytest

from conftest import a_terminal, assert_nothing_is_left

pytestmark = pytest.mark.cluster

SPEC = "name: gpus\ncloud: local\nnodes: 2\nmin: 1\ntype: g4dn.12xlarge\nkeep: no\n"


def test_stand_ins_are_counted_and_assigned_and_a_node_that_lacks_one_is_missing():
    with a_terminal(SPEC) as terminal:
        assert "g4dn.12xlarge has 4 GPUs on AWS and none in the local cloud" in terminal.phalanx("plan").stdout
        terminal.phalanx("local", "gpus", "4")
        assert "48 vCPUs, 4 GPUs" in terminal.phalanx("plan").stdout
        assert "4 stand-ins in the local cloud" in terminal.phalanx("up").stderr
        nodes = json.loads(terminal.phalanx("nodes", "--json").stdout)
        assert [(node["gpus"], node["slots"]) for node in nodes] == [(4, 4)] * 2
        assert terminal.on("worker2", "nvidia-smi -L").count("GPU ") == 4
        arguments = (
            "run",
            "--launcher",
            "tensorflow",
            "-N",
            "2",
            "--",
            "sh",
            "-c",
            "echo $CUDA_VISIBLE_DEVICES",
        )
        seen = sorted(line.split()[-1] for line in terminal.phalanx(*arguments).stdout.splitlines())
        assert seen == ["0,1", "0,1", "2,3", "2,3"]
        terminal.phalanx("local", "gpus", "3")
        terminal.phalanx("scale", "3", "--yes")
        status = terminal.phalanx("status").stdout
        assert "missing   deeplearning-worker3: " in status and "only 3 of 4 GPUs work" in status
        processes = terminal.local_cloud_processes()
        terminal.phalanx("down", "--yes")
        assert_nothing_is_left(terminal, processes)
