"""What a job waits for that begins after others."""

from __future__ import annotations

import shutil

import pytest

from phalanx.runner.files import state as states
from phalanx.runner.files.job_record import JobRecord
from phalanx.runner.files.job_status import JobState, JobStatus
from phalanx.runner.head import settle
from phalanx.runner.head.predecessors import Predecessors


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """Write a job's state; its runner lives as long as its state is not final."""
    monkeypatch.setattr("phalanx.runner.head.settle.states.runner_lives", lambda runner: runner is not None)

    def write(job_id: str, state: JobState, has_runner: bool = True, stack: str = "s") -> None:
        (tmp_path / job_id).mkdir(exist_ok=True)
        runner = states.this_runner("i-1") if has_runner else None
        states.write(str(tmp_path / job_id), JobStatus(job_id, "", "exec", (), state, 1.0, runner=runner, stack=stack))

    return write


def waits(tmp_path, *after: str, any: tuple[str, ...] = ()) -> Predecessors:
    return Predecessors(str(tmp_path), JobRecord(("true",), after=after, after_any=any, stack="s"))


def test_it_waits_until_all_have_ended(tmp_path, jobs):
    jobs("a", JobState.RUNNING)
    jobs("b", JobState.PENDING)
    found = waits(tmp_path, "a", any=("b",))
    assert (found.are_over(), found.awaited) == (False, "jobs a, b")
    jobs("a", JobState.SUCCEEDED)
    assert (found.are_over(), found.awaited) == (False, "job b")
    jobs("b", JobState.FAILED)
    assert (found.are_over(), found.obstacle) == (True, "")


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.STOPPED, JobState.TIMED_OUT, JobState.LOST])
def test_one_that_had_to_succeed_and_did_not_is_an_obstacle_at_once(tmp_path, jobs, state):
    jobs("a", state)
    jobs("b", JobState.RUNNING)
    found = waits(tmp_path, "a", "b")
    assert found.are_over()
    assert found.obstacle == f"job a ended as '{state.value}', and this one was to begin after its success"


def test_one_that_was_removed_is_an_obstacle_only_where_it_had_to_succeed(tmp_path, jobs):
    jobs("a", JobState.RUNNING)
    both = waits(tmp_path, "a"), waits(tmp_path, any=("a",))
    assert [one.are_over() for one in both] == [False, False]
    shutil.rmtree(tmp_path / "a")
    assert [(one.are_over(), bool(one.obstacle)) for one in both] == [(True, True), (True, False)]


def test_one_whose_runner_died_is_settled_and_again_after_a_while(tmp_path, jobs, monkeypatch):
    settled: list[str] = []
    now_s = 1000.0
    monkeypatch.setattr(settle.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(settle, "settle_in_background", settled.append)
    jobs("a", JobState.RUNNING, has_runner=False)
    found = waits(tmp_path, any=("a",))
    assert [found.are_over(), found.are_over()] == [False, False]
    assert settled == [str(tmp_path / "a")]
    now_s += 121
    assert not found.are_over()
    assert settled == [str(tmp_path / "a")] * 2


def test_an_orphan_of_another_cluster_is_lost_and_not_touched(tmp_path, jobs, monkeypatch):
    monkeypatch.setattr(settle, "settle_in_background", lambda _: pytest.fail("it was settled"))
    jobs("a", JobState.RUNNING, has_runner=False, stack="another")
    assert waits(tmp_path, any=("a",)).are_over()
    assert "'lost'" in waits_over(waits(tmp_path, "a"))


def test_a_damaged_record_is_an_end(tmp_path, jobs):
    jobs("a", JobState.RUNNING)
    (tmp_path / "a" / "state.json").write_text("{")
    assert "'damaged'" in waits_over(waits(tmp_path, "a"))


def waits_over(found: Predecessors) -> str:
    assert found.are_over()
    return found.obstacle
