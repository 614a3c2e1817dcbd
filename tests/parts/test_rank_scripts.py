"""Scripts that launchers write for their ranks, run by a shell."""

from __future__ import annotations

import subprocess
from dataclasses import replace

from fake_nodes import roster

from phalanx.launchers import load
from phalanx.runner.process import PreparedJob


def test_deepspeeds_ranks_are_given_the_granted_gpus_in_place_of_the_first_ones(tmp_path):
    job = PreparedJob(("x",), "", id="1", directory=str(tmp_path), devices={"deeplearning-worker1": ("2", "3")})
    nodes = roster(nodes=2, slots=2)
    nodes = nodes._replace(nodes=tuple(node._replace(gpus=2) for node in nodes.nodes))
    first, second = load("deepspeed").processes(replace(job, launcher="deepspeed"), nodes)
    assert (first.env, second.env) == ({"PHALANX_GPUS": "2,3"}, {})
    show = first.files["rank"].rpartition("exec")[0] + "echo $CUDA_VISIBLE_DEVICES"
    for env, seen in ((first.env, "2,3\n"), (second.env, "0,1\n")):
        env = {**env, "CUDA_VISIBLE_DEVICES": "0,1"}
        assert subprocess.run(["sh", "-c", show], env=env, capture_output=True, text=True, check=True).stdout == seen
