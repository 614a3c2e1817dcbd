"""The record of a job that a newer phalanx started is refused with what to do, and stays as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_jobs import run, wait_for_line

from phalanx.errors import JobError
from phalanx.jobs.job import JOBS, Job, JobSpec, JobState, list_jobs, submit

NEWER = r"was made by a newer phalanx \(format 2; this one reads 1\): pip install -U phalanx"


def made_newer(path: Path) -> str:
    """Give a record another format and a field that nobody knows yet; return its text."""
    path.write_text(text := json.dumps({**json.loads(path.read_text()), "format": 2, "colour": "blue"}))
    return text


@pytest.fixture
def newer(two_nodes, code) -> tuple[Job, Path, str]:
    """A job with a newer state that has ended, its state's file, and its text."""
    _, status = run(two_nodes, code, "echo", "kept", checkpoint="checkpoints/mnist")
    job = Job(two_nodes, status.id)
    path = Path(two_nodes.shared, JOBS, job.id, "state.json")
    return job, path, made_newer(path)


def test_it_is_one_line_of_the_list_and_hides_no_other(two_nodes, code, newer):
    job, path, text = newer
    _, sound = run(two_nodes, code, "true")
    found = {one.id: one for one in list_jobs(two_nodes)}
    assert found[sound.id].state is JobState.SUCCEEDED
    assert found[job.id].state is JobState.DAMAGED
    assert found[job.id].message == f"job {job.id} {NEWER}".replace("\\", "")
    assert path.read_text() == text


def test_its_output_is_not_read(newer):
    with pytest.raises(JobError, match=NEWER) as refused:
        list(newer[0].follow())
    assert refused.value.message.startswith(f"job {newer[0].id} ")


def test_a_stop_leaves_its_record_as_it_is(newer):
    job, path, text = newer
    status = job.stop()
    assert status.state is JobState.STOPPED and status.verified
    assert status.message.startswith("stopped on request; job ") and status.message.endswith("pip install -U phalanx")
    assert path.read_text() == text and [one.name for one in path.parent.glob("state.json*")] == ["state.json"]


def test_a_job_that_makes_its_own_record_newer_can_be_stopped(two_nodes, code):
    job = submit(two_nodes, JobSpec(("sh", "-c", "echo up; exec sleep 60"), "exec", directory=code))
    wait_for_line(job.follow(), "up")
    path = Path(two_nodes.shared, JOBS, job.id, "state.json")
    made_newer(path)
    assert job.stop().state is JobState.STOPPED
    assert json.loads(path.read_text())["state"] == "stopped"


def test_no_job_resumes_it(two_nodes, code, newer):
    job, path, _ = newer
    text = made_newer(path.parent / "job.json")
    with pytest.raises(JobError, match=f"job {job.id} {NEWER}"):
        run(two_nodes, code, resume=job.id)
    assert (path.parent / "job.json").read_text() == text and len(list_jobs(two_nodes)) == 1


@pytest.mark.parametrize("number", [None, "1", 0, -1])
def test_one_without_a_sound_number_is_damaged(two_nodes, newer, number):
    job, path, text = newer
    path.write_text(json.dumps({**json.loads(text), "format": number}))
    (found,) = list_jobs(two_nodes)
    assert (found.id, found.state) == (job.id, JobState.DAMAGED)
    assert found.message.startswith("damaged record: state.json: format: ")


def test_a_head_with_a_newer_roster_accepts_no_job(two_nodes, code):
    path = Path(two_nodes.root, "roster.json")
    text = made_newer(path)
    with pytest.raises(JobError, match=f"the cluster's roster {NEWER}"):
        run(two_nodes, code, "true")
    assert path.read_text() == text and not list(Path(two_nodes.shared, JOBS).glob("*"))
