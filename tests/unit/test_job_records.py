"""A job's record is read as it was written, or it is damaged and that is said; whatever anybody put there."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from error_codes import raises_code

from phalanx.jobs.job import _new_id
from phalanx.jobs.job_model import status_in, status_of
from phalanx.node.validate import Invalid
from phalanx.runner.files import job_record
from phalanx.runner.files import state as states
from phalanx.runner.files.job_record import Environment, JobRecord, Mirror
from phalanx.runner.files.job_status import Attempt, Held, JobState, JobStatus, NodeVerdict, RunnerIdentity

JOB = JobRecord(("true",), "exec", id="J1", submitted_at=1.5)
STATUS = JobStatus.first(JOB)._replace(runner=RunnerIdentity(7, "9", "b", "i-1"))
STATE = STATUS.to_record()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "J1").mkdir()
    return tmp_path / "J1"


def test_ids_of_jobs_sort_by_the_time_of_their_submission():
    times_ns = [1_763_876_482_000_000_000 + number * 1_000_000 for number in range(0, 2000, 7)]
    ids = [_new_id(at_ns) for at_ns in times_ns]
    assert ids == sorted(ids)
    assert ids[0][:-3] == "251123-054122-000"


def test_what_was_written_is_read(job):
    status = STATUS._replace(
        state=JobState.FAILED,
        ended_at=3.5,
        exit_code=3,
        tail=("no\u2028", "\x1b"),
        nodes=(NodeVerdict("n", True, 0, ""),),
        attempts=(Attempt(0, "failed", died=True),),
        allocation=Held("slurm", "42"),
        gpus={"n": ("0", "1")},
    )
    states.write(str(job), status)
    assert states.read(str(job)) == status


def test_unknown_fields_are_passed_over():
    assert JobStatus.from_record({**STATE, "colour": "red"}) == STATUS


@pytest.mark.parametrize("name", sorted(STATE))
def test_a_field_that_is_missing_or_of_another_kind_is_named(name):
    with pytest.raises(Invalid, match=name):
        JobStatus.from_record({key: value for key, value in STATE.items() if key != name})
    with pytest.raises(Invalid, match=name):
        JobStatus.from_record({**STATE, name: object()})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("9" * 100_000, "not valid JSON"),
        ('{"submitted_at": NaN}', "not valid JSON"),
        ("[]", "state.json"),
        (json.dumps({**STATE, "id": "J2"}), "belongs to another job"),
        (json.dumps({**STATE, "id": "../J1"}), "id"),
        (json.dumps({**STATE, "state": "damaged"}), "no runner writes"),
        (json.dumps(STATE).replace("1.5", "1e999"), "submitted_at"),
    ],
    ids=lambda text: text[:12],
)
def test_a_damaged_record_says_why(job, text, why):
    (job / "state.json").write_text(text)
    with pytest.raises(Invalid, match=why):
        states.read(str(job))


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path)],
    ids=["fifo", "directory", "link to a device", "link to itself"],
)
def test_what_is_no_file_is_not_waited_for(job, make):
    make(job / "state.json")
    with pytest.raises(Invalid, match=r"state\.json"):
        states.read(str(job))


def test_a_file_without_end_is_not_read_whole(job):
    with (job / "state.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(Invalid, match="larger than 16 MiB"):
        states.read(str(job))


def test_room_is_made_for_a_sound_record_whatever_is_there(job):
    (job / "state.json").mkdir()
    states.set_aside(str(job))
    states.write(str(job), STATUS._replace(state=JobState.STOPPED))
    assert states.read(str(job)).state == "stopped"


def test_the_users_machine_accepts_only_valid_job_states():
    assert status_in(json.dumps(STATE).encode()).state is JobState.PENDING
    for line in (b"{", b"{}", b"[]", json.dumps({**STATE, "tail": "x"}).encode()):
        with raises_code("invalid-answer"):
            status_in(line)


def test_of_a_damaged_job_nothing_is_proved():
    status = status_of(states.damaged("/efs/.phalanx/jobs/J1", Invalid("state.json is empty")).to_record())
    assert (status.id, status.state, status.message) == ("J1", JobState.DAMAGED, "damaged record: state.json is empty")
    assert status.state.final and not status.verified


FULL = replace(
    JOB,
    processes=2,
    tags={"model": "resnet"},
    nodes_min=1,
    nodes_max=2,
    role_env={"server": {"A": "b"}},
    hosts=("deeplearning-worker1",),
    environment=Environment("mine", {"requirements.txt": "x"}, (("-r", "requirements.txt"),), variables={"A": "b"}),
    mirror=Mirror("b", "runs/", "us-east-1", "https://s3", "/efs/.phalanx/s3/b~runs"),
)


def test_a_job_is_read_as_it_was_written_without_its_secrets(job):
    (job / "job.json").write_text(json.dumps(replace(FULL, secrets={"KEY": "s3cret"}).to_record()))
    assert "s3cret" not in (job / "job.json").read_text()
    assert job_record.read(str(job)) == FULL


@pytest.mark.parametrize("name", sorted(FULL.to_record()))
def test_a_field_of_a_job_that_is_missing_or_of_another_kind_is_named(name):
    with pytest.raises(Invalid, match=name):
        JobRecord.from_record({key: value for key, value in FULL.to_record().items() if key != name})
    for value in (object(), [-1], {"a": 1}, {"a": {"b": 1}}):
        with pytest.raises(Invalid, match=name):
            JobRecord.from_record({**FULL.to_record(), name: value})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"id": "J2"}, "belongs to another job"),
        ({"command": []}, "no command"),
        ({"launcher": ""}, "no launcher"),
        ({"processes": 0}, "processes: 0 is too small"),
        ({"resume": "../J1"}, "resume: no job has such an id"),
    ],
)
def test_a_damaged_description_says_why(job, changes, why):
    (job / "job.json").write_text(json.dumps({**JOB.to_record(), **changes}))
    with pytest.raises(Invalid, match=f"job.json: .*{why}"):
        job_record.read(str(job))
