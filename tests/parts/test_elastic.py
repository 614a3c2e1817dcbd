"""An elastic job on nodes that come and go; its engine is a shell script that restarts its rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_nodes import FakeCluster, kill_chosen, kill_marked, kill_starter

from phalanx.jobs.job import Job, JobSpec, JobState, JobStatus, OutputLine, submit

TORCHRUN = """#!/bin/sh
for word; do case $word in --rdzv-endpoint*) echo "$word" >> {root}/endpoints;; esac; done
while [ "$1" != --no-python ]; do shift; done
shift
until RANK=${{FAKE_NODE##*r}} "$@"; do :; done
"""


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    cluster = FakeCluster(tmp_path, nodes=3)
    (tmp_path / "bin" / "torchrun").write_text(TORCHRUN.format(root=tmp_path))
    (tmp_path / "bin" / "torchrun").chmod(0o755)
    return cluster


class Run:
    """A job whose ranks print `here` and wait for a file."""

    def __init__(self, cluster: FakeCluster, fewest: int, most: int) -> None:
        code = cluster.root / "code"
        code.mkdir()
        self.go_file = cluster.root / "go"
        script = f"echo here; until [ -e {self.go_file} ]; do sleep 0.02; done"
        spec = JobSpec(("sh", "-c", script), "torchrun", directory=code, nodes_min=fewest, nodes_max=most, per_node=1)
        self.job: Job = submit(cluster, spec)  # type: ignore[arg-type]
        self.seen: list[str] = []
        self._events = self.job.follow()

    def wait_for(self, *ranks: str) -> None:
        """Wait until each of these ranks has printed it once more."""
        missing = set(ranks)
        while missing:
            event = next(self._events)
            if isinstance(event, OutputLine) and event.data == b"here":
                missing.discard(event.process)

    def end(self) -> JobStatus:
        return [event for event in self._rest() if isinstance(event, JobStatus)][-1]

    def go(self) -> JobStatus:
        self.go_file.touch()
        return self.end()

    def _rest(self) -> Iterator[OutputLine | JobStatus]:
        yield from self._events


def test_it_continues_with_the_remaining_nodes_and_grows_again(cluster):
    run = Run(cluster, 2, 3)
    run.wait_for("head", "2", "3")
    cluster.down("deeplearning-worker3")
    kill_starter(run.job, "deeplearning-worker3")
    run.wait_for("head", "2")  # their ranks were started again, because their peer is gone
    cluster.up("deeplearning-worker3")
    cluster.change_roster(nodes=3)
    run.wait_for("3")
    status = run.go()
    assert (status.state, status.exit_code, status.message) == (JobState.SUCCEEDED, 0, "")
    assert [verdict.clean for verdict in status.nodes] == [True, True, True]
    endpoints = (cluster.root / "endpoints").read_text().split()
    assert len(endpoints) == 4
    assert len(set(endpoints)) == 1


def test_an_engine_that_is_killed_on_a_living_node_is_restarted(cluster):
    run = Run(cluster, 3, 3)
    run.wait_for("head", "2", "3")
    kill_chosen(lambda argv, env: f"{cluster.root}/bin/torchrun" in argv and "FAKE_NODE=deeplearning-worker3" in env)
    run.wait_for("head", "2", "3")  # its peers' ranks were started again, too
    status = run.go()
    assert (status.state, status.exit_code, status.message) == (JobState.SUCCEEDED, 0, "")
    assert [verdict.clean for verdict in status.nodes] == [True, True, True]


def test_too_few_nodes_end_it_although_engines_restart_ranks(cluster):
    torchrun = cluster.root / "bin" / "torchrun"
    torchrun.write_text(torchrun.read_text().replace("until ", "trap : TERM\nuntil "))
    run = Run(cluster, 3, 3)
    run.wait_for("head", "2", "3")
    cluster.down("deeplearning-worker2")
    kill_starter(run.job, "deeplearning-worker2")
    status = run.end()
    assert status.state is JobState.FAILED
    assert status.message.startswith("deeplearning-worker2 was lost")
    kill_marked(run.job.id)  # that node can't be asked; here its processes are this machine's


def test_more_nodes_than_requested_stay_out(cluster):
    run = Run(cluster, 1, 2)
    run.wait_for("head", "2")
    cluster.change_roster(nodes=3)
    status = run.go()
    assert status.processes == 2
    assert len((cluster.root / "endpoints").read_text().split()) == 2
