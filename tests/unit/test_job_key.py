"""The key `job` of phalanx.yaml: options of `phalanx run` for every job."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from error_codes import raises_code

from phalanx.cli import run
from phalanx.errors import SpecError
from phalanx.jobs.job_model import JobSpec
from phalanx.runner.files.job_record import JobRecord
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_job import EXAMPLE, JOB

CLUSTER = "name: demo\ncloud: local\nnodes: 2\n"


@pytest.fixture
def ran(monkeypatch, tmp_path) -> Any:
    """Call `run` beside a phalanx.yaml with this text; return the job that it would start."""
    started: list[JobSpec] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "load_cluster", lambda *_: SimpleNamespace(require_ready=lambda: None))
    monkeypatch.setattr(run, "start", lambda _cluster, spec, *_rest: started.append(spec) or 0)

    def call(job: str, *arguments: str, file: str = "phalanx.yaml") -> JobSpec:
        (tmp_path / file).write_text(CLUSTER + job)
        done = CliRunner().invoke(run.command, [*arguments, "--", "true"], standalone_mode=False)
        assert done.exception is None, done.exception
        return started.pop()

    return call


def test_every_option_of_a_job_is_a_key_and_secrets_are_none():
    options = {field.name for field in fields(JobRecord) if field.metadata.get("flag")}
    options -= {"name", "resume", "after", "after_any", "array"}
    keys = {"launcher", "recipe", "nodes", "via", *(name.removesuffix("_s") for name in options)}
    assert keys == set(JOB.schema()["properties"])
    assert "secrets" not in keys
    assert ClusterSpec(name="demo", nodes=2, job=EXAMPLE).job == EXAMPLE


def test_a_job_has_what_the_file_says(ran):
    job = ran(
        "job:\n  launcher: torchrun\n  per_node: 2\n  env: {LR: 0.10}\n  checkpoint: c\n  restarts: 3\n"
        "  grace: 1m\n  wait: yes\n  wait_limit: 2h\n  tags: {team: vision}\n"
    )
    assert (job.launcher, job.per_node, job.env, job.checkpoint, job.restarts) == (
        "torchrun",
        2,
        {"LR": "0.10"},
        "c",
        3,
    )
    assert (job.grace_s, job.wait, job.wait_limit_s, job.tags) == (60, True, 7200, {"team": "vision"})


@pytest.mark.parametrize("written", ["75", "[75, 137]", "'137,75'"])
def test_exit_codes_are_a_number_a_list_or_a_text(ran, written):
    assert ran(f"job: {{restarts: 2, restart_on: {written}}}\n").restart_on == tuple(
        code for code in (75, 137) if str(code) in written
    )


def test_the_command_line_counts_more(ran):
    text = "job: {launcher: torchrun, per_node: 2, env: {LR: '1', A: '2'}, restarts: 3}\n"
    job = ran(text, "--launcher", "exec", "--restarts", "0", "--env", "LR=5", "-n", "3")
    assert (job.launcher, job.restarts, job.env) == ("exec", 0, {"LR": "5", "A": "2"})
    assert (job.processes, job.per_node) == (3, None), "a number of processes replaces the file's"
    job = ran("job: {processes: 4, launcher: torchrun}\n", "--nodes", "1:2")
    assert (job.processes, job.nodes_max) == (None, 2)


def test_a_range_of_nodes_and_a_batch_system_are_keys_too(ran):
    job = ran("job: {launcher: torchrun, nodes: '2:4', restarts: 1, processes: 4}\n", "--nodes", "1:3")
    assert (job.nodes_min, job.nodes_max, job.processes) == (1, 3, None)
    job = ran("job: {launcher: torchrun, nodes: 2:4}\n")
    assert (job.nodes_min, job.nodes_max) == (2, 4)
    assert ran("job: {launcher: torchrun, nodes: '2:4'}\n", "-n", "3").nodes_min is None
    assert ran("job: {launcher: torchrun, nodes: '2:4'}\n", "-N", "3").nodes_min == 2
    assert ran("job: {via: slurm}\n").via == "slurm"
    assert ran("job: {via: slurm}\n", "--via", "sge").via == "sge"


def test_an_option_replaces_what_of_the_file_it_excludes(ran):
    assert ran("job: {via: slurm}\n", "--array", "0-3").via is None
    assert ran("job: {via: slurm, launcher: torchrun}\n", "--nodes", "1:3").via is None
    assert ran("job: {launcher: torchrun, nodes: '2:4'}\n", "--via", "slurm").nodes_min is None
    assert ran("job: {nodes: '2:4', launcher: torchrun}\n", "--launcher", "exec").nodes_min is None
    assert ran("job: {nodes: '2:4'}\n", "--launcher", "torchrun").nodes_min == 2
    assert ran("job: {restarts: 2, restart_on: 75}\n", "--restarts", "0").restart_on == ()


def test_variables_of_a_file_stand_between_the_key_and_the_command_line(ran, tmp_path):
    (tmp_path / "team.env").write_text("A=file\nB=file\nC=file\n")
    job = ran("job: {env: {A: key, D: key}}\n", "--env-file", str(tmp_path / "team.env"), "--env", "B=line")
    assert job.env == {"A": "file", "B": "line", "C": "file", "D": "key"}


def test_a_file_says_nothing_about_another_cluster_or_a_resumed_job(ran):
    text = "job: {launcher: exec, restarts: 3}\n"
    assert ran(text, "-c", "other").restarts == 0
    assert ran(text, "-c", "demo").restarts == 3
    assert ran(text, "--file", "other.yaml", file="other.yaml").restarts == 3


def test_a_resumed_job_keeps_its_own(ran):
    assert ran("job: {launcher: exec, restarts: 3}\n", "--resume", "mnist").restarts == 0


@pytest.mark.parametrize(
    ("job", "code"),
    [
        ({}, "no-value"),
        ({"secrets": {"A": "b"}}, "unknown-key"),
        ({"per_node": 0}, "out-of-range"),
        ({"grace_s": 5}, "unknown-key"),
        ({"env": {"PHALANX_X": "1"}}, "bad-entry"),
        ({"launcher": "../mpi"}, "bad-value"),
    ],
)
def test_what_is_no_option_is_refused(job, code):
    with raises_code(code):
        ClusterSpec(name="demo", nodes=2, job=job)


@pytest.mark.parametrize(
    ("key", "wrong", "near"), [("launcher", "torchrn", "torchrun"), ("via", "slrum", "slurm"), ("nodes", "4:2", "2:4")]
)
def test_what_only_run_can_judge_is_an_error_of_the_file(monkeypatch, tmp_path, key, wrong, near):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "phalanx.yaml").write_text(f"{CLUSTER}job: {{{key}: '{wrong}'}}\n")
    with pytest.raises(SpecError, match=rf"phalanx.yaml:4: job: .*'{wrong}'.*") as caught:
        run.command.main(["--dry-run", "--", "true"], standalone_mode=False)
    assert near in f"{caught.value.message} {caught.value.hint}"
