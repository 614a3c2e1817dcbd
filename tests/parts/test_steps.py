"""How far the ranks of a job are: counted in their output, shown while it runs, and summed up at its end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_jobs import outcome
from fake_nodes import FakeCluster

from phalanx.jobs import loads
from phalanx.jobs.job import Job, JobSpec, submit
from phalanx.runner.files import ring
from phalanx.runner.rank_progress import RankProgress, straggler

# Rank 3 takes four times as long for a step.
TRAIN = """
import os, time
rank = os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
for step in range(1, 1000):
    time.sleep(0.4 if rank == "3" else 0.1)
    print("epoch 0 step", step, flush=True)
    if rank == "0":
        print(f"phalanx: loss={1 / step:.6f} lr=1e-3", flush=True)
"""


def ranks_of(cluster: FakeCluster, job: Job, is_so: Callable[[list[RankProgress]], bool]) -> list[RankProgress]:
    deadline = time.monotonic() + 60
    while not is_so(found := loads.seen(cluster, job.id).ranks.get(job.id, [])):
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
    return found


@pytest.mark.parametrize("launcher", ["exec", "mpi"])
def test_steps_of_ranks_are_counted_and_the_slow_one_is_named(tmp_path, code, launcher):
    cluster = FakeCluster(tmp_path, slots=4)
    (code / "train.py").write_text(TRAIN)
    job = submit(
        cluster,
        JobSpec(("python", "train.py"), launcher, processes=4, per_node=2, directory=code, step=r"step (\d+)"),
        detach=True,
    )
    try:
        found = ranks_of(cluster, job, lambda ranks: len(ranks) == 4 and all(one.progress.rate for one in ranks))
        slow = straggler(found)
        assert slow and slow.rank == "rank 3" and slow.node == "deeplearning-worker2", found
        assert [sorted(one.progress.values) for one in sorted(found)] == [["loss", "lr"], [], [], []]
        assert {one.rank for one in found} == {f"rank {number}" for number in range(4)}
        nodes = {one.node: one.load for one in loads.loads_of(cluster, job.id)}
        assert 0 < nodes["deeplearning-worker2"].step < nodes["deeplearning-worker1"].step
        assert 0 < nodes["deeplearning-worker2"].step_rate < 4
    finally:
        status = job.stop()
    assert status.load[0].startswith("step ") and "straggler: rank 3 on deeplearning-worker2" in status.load[0]
    assert status.load[1].startswith("last values: loss 0.")
    fine, _ = ring.read(str(Path(job.directory, "load", "deeplearning-worker2.ring")))
    assert fine[-1][1].step > 0


def test_an_expression_that_takes_for_ever_stops_no_output(tmp_path, code):
    cluster = FakeCluster(tmp_path)
    (code / "train.py").write_text("print('a' * 900, flush=True)\nfor step in range(5000): print('step', step)\n")
    began = time.monotonic()
    job = submit(
        cluster, JobSpec(("python", "train.py"), "exec", processes=1, directory=code, step=r"(a+)+(\d)x"), detach=True
    )
    lines, status = outcome(job.follow())
    assert (status.state, len(lines), lines[-1]) == ("succeeded", 5001, "0: step 4999"), status
    assert time.monotonic() < began + 20
    assert "takes too long" in json.dumps(status.load)


def test_values_of_a_job_that_ends_at_once_are_kept(tmp_path, code):
    cluster = FakeCluster(tmp_path)
    command = ("python", "-c", "print('phalanx: step=7 loss=0.5')")
    _, status = outcome(submit(cluster, JobSpec(command, "exec", processes=1, directory=code)).follow())
    assert status.load[:2] == ("step 7", "last values: loss 0.5")
