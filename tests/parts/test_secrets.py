"""Secrets reach a job's processes and nothing else: no argument, no file, no output of ours."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from error_codes import raises_code
from fake_nodes import FakeCluster

from phalanx import cli
from phalanx.cluster.cluster_record import Cluster
from phalanx.jobs.job import JobSpec, JobState, OutputLine, submit

SECRET = 'correct horse "battery" $staple\nsecond line'


@pytest.fixture
def cluster(tmp_path):
    return FakeCluster(tmp_path)


@pytest.mark.parametrize("launcher", ["exec", "mpi"])
def test_every_rank_has_it_and_no_file_or_argument_does(cluster, code, launcher):
    look = 'cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\\0" " " | grep -c "batt[e]ry. .staple"'
    script = f'printf %s "$TOKEN" | md5sum; {look}; true'
    spec = JobSpec(("sh", "-c", script), launcher, processes=2, directory=code, secrets={"TOKEN": SECRET})
    assert "battery" not in repr(spec)
    events = list(submit(cluster, spec).follow())
    status = events[-1]
    assert status.state is JobState.SUCCEEDED, status
    digest = subprocess.run(["md5sum"], input=SECRET.encode(), capture_output=True).stdout
    printed = [event.data for event in events if isinstance(event, OutputLine) and event.process.isdigit()]
    assert sorted(printed) == sorted([digest.strip(), b"0"] * 2)
    found = subprocess.run(["grep", "-rlF", "battery", cluster.shared], capture_output=True).stdout
    assert found == b""


def test_a_detached_job_has_it_too(cluster, code):
    spec = JobSpec(("sh", "-c", "echo $TOKEN > kept"), "exec", processes=1, directory=code, secrets={"TOKEN": "x1"})
    job = submit(cluster, spec, detach=True)
    assert job.wait(120).state is JobState.SUCCEEDED
    assert Path(job.directory, "work", "kept").read_text() == "x1\n"


def test_a_name_that_no_shell_takes_is_refused():
    with raises_code("bad-variable", "'A-B'"):
        JobSpec(("true",), secrets={"A-B": "x"})


@pytest.fixture
def demo(monkeypatch, tmp_path, cluster):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path / "state"))
    Cluster("demo", "local", "us-east-1", "arn", "54.0.0.1", "/efs").save()
    monkeypatch.setattr(Cluster, "roster", lambda _: cluster.roster)
    monkeypatch.chdir(tmp_path)


def test_a_dry_run_names_it_and_masks_it(demo, monkeypatch, capsys):
    monkeypatch.setenv("TOKEN", SECRET)
    arguments = ["--launcher", "exec", "--env", "LR=0.1", "--secret", "TOKEN", "--dry-run", "--", "true"]
    assert cli.execute(["run", *arguments]) == 0
    out = capsys.readouterr().out
    assert "LR=0.1" in out
    assert "TOKEN='****'" in out
    assert "battery" not in out


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--secret", "NOWHERE_SET"], "'NOWHERE_SET' is not set in your environment"),
        (["--secret", "TOKEN=swordfish"], "export it and use `--secret TOKEN`"),
        (["--secret", "TOKEN=@nofile"], "can't read nofile"),
    ],
)
def test_a_secret_that_is_not_available_is_reported_without_showing_it(demo, capsys, arguments, shown):
    assert cli.execute(["run", *arguments, "--", "true"]) == 2
    err = capsys.readouterr().err
    assert shown in err
    assert "swordfish" not in err


def test_a_file_gives_its_text_without_the_last_line_end(demo, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "phalanx.cli.starting.submit", lambda cluster, spec, **_: seen.append(spec.secrets) or _Detached()
    )
    (tmp_path / "token").write_text("from a file\n")
    assert cli.execute(["run", "--secret", "TOKEN=@token", "--detach", "--", "true"]) == 0
    assert seen == [{"TOKEN": "from a file"}]


class _Detached:
    id = "1"
