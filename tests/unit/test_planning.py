"""What an attempt starts: on the current roster, without lost nodes, and on free ports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_nodes import roster

from phalanx.node.roster import Roster
from phalanx.runner.files.job_record import JobRecord
from phalanx.runner.head.planner import Planner
from phalanx.runner.process import PreparedJob, Process, RefusedError

JOB = JobRecord(("true",), "fake", id="1", env={"A": "b"})
USERS_PORT = 47113


class Launcher:
    """Starts a process per node, with one of the job's ports and perhaps a port that the user set; needs two nodes."""

    NAME = "fake"
    SUMMARY = PROGRAM = ""
    ENGINE = OPTIONS = RECIPES = ()

    def __init__(self, *named: int) -> None:
        self.named = named

    def processes(self, job: PreparedJob, on: Roster) -> list[Process]:
        if len(on.nodes) < 2:
            raise RefusedError("2 nodes are needed")
        ports = (job.port(0), *self.named)
        return [Process(node.name, node.name, ("true",), ("true",), {node.name: 1}, ports=ports) for node in on.nodes]


class Loop:
    """A loop whose turns take no time; a turn may change the state."""

    def __init__(self) -> None:
        self.turn: Callable[[float], None] = lambda _timeout_s: pytest.fail("nothing was to be waited for")


@pytest.fixture
def context() -> SimpleNamespace:
    return SimpleNamespace(loop=Loop(), stop_requested=False)


@pytest.fixture
def publish(tmp_path, monkeypatch):
    path = tmp_path / "now.json"
    monkeypatch.setenv("PHALANX_ROSTER", str(path))

    def change(nodes: int, generation: int) -> Roster:
        found = roster(nodes, 1)._replace(generation=generation)
        path.write_text(found.to_json())
        return found

    change(3, 1)
    return change


@pytest.fixture
def make(tmp_path, publish, context, monkeypatch) -> Callable[..., Planner]:
    monkeypatch.setattr("phalanx.runner.head.planner._free_port", lambda: 29500)
    return lambda *named: Planner(str(tmp_path), Launcher(*named), context)  # type: ignore[arg-type]


def names(processes) -> list[str]:
    return [process.node.rpartition("worker")[2] for process in processes]


def test_it_is_planned_on_all_nodes_and_the_roster_is_kept(make, tmp_path: Path):
    plan = make().plan(JOB, 0)
    assert names(plan.processes) == ["1", "2", "3"]
    assert (plan.job.master_port, plan.job.command) == (29500, ("true",))
    assert plan.job.env == {"A": "b", "PHALANX_RESTART": "0"}
    assert len(json.loads((tmp_path / "roster.json").read_text())["nodes"]) == 3


def test_after_a_loss_another_roster_is_awaited(make, publish, context):
    planner = make()
    planner.generation, planner.lost = 1, {"i-3"}
    context.loop.turn = lambda _timeout_s: publish(4, 2)
    assert names(planner.plan(JOB, 1).processes) == ["1", "2", "4"]


def test_a_stop_ends_the_waiting(make, context):
    planner = make()
    planner.generation, planner.lost = 1, {"i-3"}
    context.stop_requested = True
    assert names(planner.plan(JOB, 1).processes) == ["1", "2"]


def test_a_roster_that_is_too_small_is_refused_at_once_when_nothing_is_lost(make, publish):
    publish(1, 2)
    with pytest.raises(RefusedError, match="2 nodes"):
        make().plan(JOB, 0)


def test_each_new_roster_is_reported_once_to_a_job_that_grows(make, publish):
    planner = make()
    planner.generation = 1
    assert planner.newer(JOB, 0) is None
    publish(4, 2)
    assert names(planner.newer(JOB, 0).processes) == ["1", "2", "3", "4"]
    assert planner.newer(JOB, 0) is None


def test_an_unsuitable_roster_is_noted_but_not_reported(make, publish):
    planner = make()
    planner.generation = 1
    publish(1, 2)
    assert (planner.newer(JOB, 0), planner.is_outdated()) == (None, True)


def taken(plan) -> set[tuple[str, int]]:
    return {(process.node, port) for process in plan.processes for port in process.ports}


def test_taken_ports_are_exchanged_a_few_times(make):
    planner = make()
    choices = [planner.has_other_ports(JOB, 0, taken(planner.plan(JOB, 0))) for _ in range(5)]
    assert choices == [True, True, True, True, False]


def test_a_port_that_the_user_named_is_not_exchanged(make):
    planner = make(USERS_PORT)
    assert not planner.has_other_ports(JOB, 0, taken(planner.plan(JOB, 0)))


def test_the_attempts_of_a_job_share_a_token(make):
    planner = make()
    tokens = {planner.plan(JOB, restart).job.token for restart in (0, 1)}
    assert len(tokens) == 1
    assert "" not in tokens
