"""GPUs of the local cloud: none, or stand-ins, by which slots, visible devices and the check of GPUs run as on AWS."""

from __future__ import annotations

import json

import pytest
from terminals import a_terminal, assert_nothing_is_left

pytestmark = pytest.mark.cluster

SPEC = "name: gpus\ncloud: local\nnodes: 4\nmin: 1\ntype: p4d.24xlarge\nkeep: no\n"


def test_stand_ins_are_counted_and_assigned_and_a_node_that_lacks_one_is_missing():
    with a_terminal(SPEC) as terminal:
        assert "p4d.24xlarge has 8 GPUs on AWS and none in the local cloud" in terminal.phalanx("plan").stdout
        terminal.phalanx("local", "gpus", "8")
        assert "96 vCPUs, 8 GPUs" in terminal.phalanx("plan").stdout
        assert "8 stand-ins in the local cloud" in terminal.phalanx("up").stderr
        nodes = json.loads(terminal.phalanx("nodes", "--json").stdout)
        assert [(node["gpus"], node["slots"]) for node in nodes] == [(8, 8)] * 4
        assert terminal.on("worker2", "nvidia-smi -L").count("GPU ") == 8
        # MXNet's option, as tutorials of 2017 compute it.
        every_gpu = "echo --gpus $(seq -s , 0 1 $(($DEEPLEARNING_WORKER_GPU_COUNT - 1)))"
        assert [terminal.on(node, every_gpu) for node in ("head", "worker2")] == ["--gpus 0,1,2,3,4,5,6,7\n"] * 2
        hosts = terminal.on("head", "mpiexec -n 32 -N 8 hostname").split()
        assert sorted(map(hosts.count, set(hosts))) == [8] * 4
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
        assert seen == ["0,1,2,3"] * 4 + ["4,5,6,7"] * 4
        terminal.phalanx("local", "gpus", "7")
        terminal.phalanx("scale", "5", "--yes")
        status = terminal.phalanx("status").stdout
        assert "missing   deeplearning-worker5: " in status and "only 7 of 8 GPUs work" in status
        processes = terminal.local_cloud_processes()
        terminal.phalanx("down", "--yes")
        assert_nothing_is_left(terminal, processes)
