"""A job's directory for checkpoints, and jobs that go on from those of an earlier job."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from unittest import mock

import pytest
from error_codes import raises_code
from fake_jobs import run, wait_for_line

from phalanx.errors import JobError
from phalanx.jobs.job import JOBS, JobSpec, list_jobs, submit
from phalanx.runner.files.job_record import Mirror
from phalanx.runner.head import aside, checkpoint_copy
from phalanx.runner.loop import Loop

# Counts how often it ran, as a training counts its epochs.
COUNT = 'echo x >> "$PHALANX_CHECKPOINT/epochs"; echo epochs $(wc -l < "$PHALANX_CHECKPOINT/epochs") $*'
TRAIN = ("sh", "-c", COUNT, "sh")
ONE = {"processes": 1, "checkpoint": "checkpoints/mnist"}


def test_a_later_job_finds_what_an_earlier_one_kept(two_nodes, code):
    assert run(two_nodes, code, *TRAIN, **ONE)[0] == ["0: epochs 1"]
    assert run(two_nodes, code, *TRAIN, **ONE)[0] == ["0: epochs 2"]
    assert Path(two_nodes.shared, "checkpoints/mnist/epochs").read_text() == "x\n" * 2


def test_a_restarted_job_goes_on_where_it_was(two_nodes, code):
    lines, status = run(two_nodes, code, "sh", "-c", f"{COUNT}; [ $PHALANX_RESTART = 1 ]", **ONE, restarts=1)
    assert status.state.value == "succeeded" and lines[-1] == "0: epochs 2"


def test_resume_repeats_a_job_with_all_that_it_was_given(two_nodes, code):
    first = submit(
        two_nodes,
        JobSpec(("sh", "-c", f"{COUNT}; echo $LR"), "exec", **ONE, directory=code, name="mnist", env={"LR": "0.1"}),
    )
    list(first.follow())
    (code / "new.txt").write_text("the code of today")
    lines, status = run(two_nodes, code, resume="mnist")
    assert lines == ["0: epochs 2", "0: 0.1"] and status.name == "mnist"
    again = json.loads(Path(two_nodes.shared, JOBS, status.id, "job.json").read_text())
    assert again["processes"] == 1 and again["launcher"] == "exec" and status.id != first.id
    assert Path(two_nodes.shared, JOBS, status.id, "work/new.txt").exists()


def test_resume_may_change_the_command(two_nodes, code):
    run(two_nodes, code, *TRAIN, **ONE)
    assert run(two_nodes, code, *TRAIN, "--epochs", resume=list_jobs(two_nodes)[0].id)[0] == ["0: epochs 2 --epochs"]


def test_two_jobs_at_a_time_never_write_into_one_directory(two_nodes, code):
    first = submit(two_nodes, JobSpec(("sh", "-c", "echo up; sleep 60"), "exec", directory=code, **ONE))
    wait_for_line(first.follow(), "up")
    for options in (ONE, {"resume": first.id}):
        with raises_code("checkpoint-taken", first.id, "/checkpoints/mnist"):
            run(two_nodes, code, *TRAIN, **options)
    first.stop()
    assert len(list_jobs(two_nodes)) == 1
    assert run(two_nodes, code, *TRAIN, **ONE)[0] == ["0: epochs 1"]


def test_secrets_are_given_again(two_nodes, code):
    run(two_nodes, code, "true", **ONE, secrets={"TOKEN": "abc"})
    reference = list_jobs(two_nodes)[0].id
    with raises_code("secrets-needed"):
        run(two_nodes, code, resume=reference)
    lines, _ = run(two_nodes, code, "sh", "-c", "echo $TOKEN", resume=reference, secrets={"TOKEN": "new"})
    assert lines == ["0: new"]


def test_a_job_without_checkpoints_is_not_resumed(two_nodes, code):
    run(two_nodes, code, "true")
    with raises_code("no-checkpoint"):
        run(two_nodes, code, resume=list_jobs(two_nodes)[0].id)
    with raises_code("no-job", "'nothing'"):
        run(two_nodes, code, resume="nothing")


@pytest.mark.parametrize("record", [b"", b"[]", b"{", b'{"env": 1}', b"[" * 99_999, b'{"command": [1], "env": {}}'])
def test_a_damaged_record_is_not_resumed(two_nodes, code, record):
    run(two_nodes, code, "true", **ONE)
    reference = list_jobs(two_nodes)[0].id
    Path(two_nodes.shared, JOBS, reference, "job.json").write_bytes(record)
    with pytest.raises(JobError, match="is damaged"):
        run(two_nodes, code, resume=reference)


def test_a_directory_that_can_not_be_made_is_refused(two_nodes, code):
    Path(two_nodes.shared, "file").write_text("")
    with raises_code("cannot-write", "/file/x", "Not a directory"):
        run(two_nodes, code, "true", checkpoint="file/x")
    with raises_code("outside-shared", "/elsewhere"):
        run(two_nodes, code, "true", checkpoint="/elsewhere")
    assert list_jobs(two_nodes) == []


@pytest.mark.parametrize("path", ["../x", "a/../b", "s3://bucket", "s3://bucket/../x", "s3://b/*", "", "a\nb", "x/.."])
def test_what_is_no_path_of_the_cluster_is_refused(path):
    with raises_code("bad-checkpoint"):
        JobSpec(("true",), checkpoint=path)


def test_resume_takes_no_option_of_the_job_itself():
    with raises_code("conflicting-options", "--restarts"):
        JobSpec((), resume="mnist", restarts=2)


def test_another_stop_cuts_the_last_copy_short(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_copy.checked, "argv", lambda *_: ("sleep", "300"))
    monkeypatch.setattr(aside, "reap", list)  # other children of this process are not its own
    context = mock.Mock(loop=Loop(), stops=1)
    mirror = Mirror("b", "runs/", "us-east-1", "https://s3", "/efs/.phalanx/mirrors/1")
    copy = checkpoint_copy.CheckpointCopy(context, str(tmp_path), mirror, "head")
    reports = []

    def report(text):
        reports.append(text)
        context.publish.side_effect = lambda: setattr(context, "stops", 2)

    over = copy.end({"state": "stopped", "message": "stopped on request"}, report)
    _, status = os.waitpid(copy._aside.pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert reports == ["copying checkpoints to s3://b/runs/; `phalanx stop` now cuts that short"]
    left = "they are in /efs/.phalanx/mirrors/1/files"
    assert over["message"] == (
        f"stopped on request (its checkpoints are not in s3://b/runs/: stopped on request; {left})"
    )
