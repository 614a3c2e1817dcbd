"""Which tasks `--array` names, and what a task's id is."""

from __future__ import annotations

import contextlib
import json

import pytest
from error_codes import raises_code

from phalanx.jobs.job_model import JobSpec
from phalanx.node.validate import Invalid
from phalanx.runner.files import state as states
from phalanx.runner.files.array import array_of, task_id, tasks_in
from phalanx.runner.files.job_status import JobState, JobStatus
from phalanx.runner.verbs import stop as verb


@pytest.mark.parametrize(
    ("text", "indices", "at_once"),
    [
        ("0-3", (0, 1, 2, 3), None),
        ("0-31%4", tuple(range(32)), 4),
        ("0-7:2", (0, 2, 4, 6), None),
        ("1,3,7", (1, 3, 7), None),
        ("7,1-3,2%1", (1, 2, 3, 7), 1),
        ("5", (5,), None),
        ("0-999", tuple(range(1000)), None),
    ],
)
def test_numbers_are_written_as_slurm_writes_them(text, indices, at_once):
    assert tasks_in(text) == (indices, at_once)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0-9999", "more than 1,000"),
        ("0-999,2000", "more than 1,000"),
        ("5-3", "is empty"),
        ("0-3:0", "is empty"),
        ("", "neither a number"),
        ("1,,2", "neither a number"),
        ("-1", "neither a number"),
        ("1-2-3", "neither a number"),
        ("٣", "neither a number"),
        ("1 ", "neither a number"),
        ("10000", "too large"),
        ("0-999999999", "too large"),
        ("0-3%", "after %"),
        ("0-3%0", "after %"),
        ("0-3%x", "after %"),
        ("1," * 600, "characters"),
    ],
)
def test_what_names_no_tasks_is_refused(text, why):
    with pytest.raises(Invalid, match=why):
        tasks_in(text)


def test_a_tasks_id_is_its_arrays_with_its_number():
    assert array_of(task_id("261128-075512-3fa9c1", 12)) == "261128-075512-3fa9c1"
    assert [array_of(one) for one in ("261128-075512-3fa9c1", "a.x", "a.01", "a.12345", ".3")] == [""] * 5


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("bad-array", {"array": "3-1"}),
        ("conflicting-options", {"array": "1-3", "via": "slurm"}),
        ("conflicting-options", {"priority": 1}),
    ],
)
def test_options_that_contradict_each_other_are_refused(code, options):
    with raises_code(code):
        JobSpec(("true",), "exec", **options)
    JobSpec(("true",), "exec", array="1-3", priority=1)


def test_all_tasks_without_a_conductor_are_asked_before_one_is_waited_for(tmp_path, monkeypatch):
    asked = []

    class Runner(contextlib.nullcontext):
        def settimeout(self, _left_s: float) -> None: ...

        def recv(self, _most: int) -> bytes:
            assert sorted(asked) == ["A.0", "A.1"]
            return b""

    monkeypatch.setattr(verb, "connect_follower", lambda job_id, _wish: asked.append(job_id) or Runner())
    for job_id in ("A", "A.0", "A.1"):
        (tmp_path / job_id).mkdir()
        states.write(str(tmp_path / job_id), JobStatus(job_id, "", "mpi", (), JobState.LOST, 1.0))
    assert verb.stop(str(tmp_path / "A"), "", 1.0) == 0


def test_what_is_no_begun_task_does_not_keep_an_array_from_being_stopped(tmp_path, capsys):
    (tmp_path / "A").mkdir()
    states.write(str(tmp_path / "A"), JobStatus("A", "", "mpi", (), JobState.LOST, 1.0, tasks={"pending": 2}))
    (tmp_path / "A.0").mkdir()  # its conductor was killed while it copied the code
    (tmp_path / "A.1").write_text("of a job\n")
    assert verb.stop(str(tmp_path / "A"), "", 1.0) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "lost"
