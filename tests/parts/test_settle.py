"""What is told of a node that can't be asked any more, and of what a job held elsewhere, when its runner is no help."""

from __future__ import annotations

from pathlib import Path

from fake_nodes import FakeCluster, kill_marked, kill_starter

from phalanx.job import JobSpec, JobStatus, OutputLine, submit


def test_a_replacement_does_not_answer_for_the_node_before_it(tmp_path: Path):
    cluster = FakeCluster(tmp_path)
    (tmp_path / "code").mkdir()
    job = submit(cluster, JobSpec(("sh", "-c", "echo on; exec sleep 300"), "exec", directory=tmp_path / "code"))
    events = job.follow()
    on = 0
    while on < 2:
        on += isinstance(next(events), OutputLine)
    cluster.replace("deeplearning-worker2", "i-new")
    kill_starter(job, "deeplearning-worker2")
    status = [event for event in events if isinstance(event, JobStatus)][-1]
    assert status.message.startswith("deeplearning-worker2 was lost")
    assert [verdict.clean for verdict in status.nodes] == [True, False]
    assert status.nodes[1].message.startswith("unverified, fenced: i-2 is gone, and its name is i-new's now")
    kill_marked(job.id)  # here its processes are this machine's
