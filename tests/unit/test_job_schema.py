"""A job has one schema: the model. What is sent, the flags and the Python options follow from it."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from error_codes import raises_code

from phalanx.api import Cluster
from phalanx.cli.run import command as run
from phalanx.cluster import cluster_record
from phalanx.errors import JobError
from phalanx.jobs.environments import recipe
from phalanx.jobs.job_model import JobOptions, JobSpec, JobStatus
from phalanx.runner.files.job_record import JobRecord
from phalanx.runner.process import PreparedJob

FIELDS = {field.name for field in fields(JobSpec)}
# What `run` and `Cluster.run` make of other options, what only `launch` sets, and what is known when a job is sent.
MADE = {"command", "nodes_min", "nodes_max", "environment"} | {"id", "stack", "submitted_at", "mirror"}
OF_LAUNCH = {"role_env", "hosts", "sync_dir"}


def test_every_field_is_a_flag_of_run():
    flags = {parameter.name.removeprefix("job_") for parameter in run.params if parameter.name}
    # A flag for each launcher's option stands for `options`, and `--stdin` for the bytes.
    assert FIELDS - MADE - OF_LAUNCH - {"options", "stdin"} <= flags
    assert "has_stdin" in flags


def test_every_field_is_an_option_in_python():
    assert set(JobOptions.__annotations__) == FIELDS - MADE - OF_LAUNCH


def test_everything_but_code_input_and_secrets_is_sent_as_json():
    spec = JobSpec(("true",), tags={"model": "resnet"}, hosts=("deeplearning-worker1",), secrets={"KEY": "s3cret"})
    sent = json.loads(json.dumps(spec.to_record()))
    assert set(sent) == FIELDS - {"directory", "stdin", "secrets"} | {"format"}
    assert (sent["tags"], sent["hosts"]) == ({"model": "resnet"}, ["deeplearning-worker1"])
    assert "s3cret" not in str(sent)


def test_a_launcher_sees_what_was_sent():
    spec = JobSpec(("python", "t.py"), id="J1", processes=2, name="long", environment=recipe("mpich").environment)
    sent = JobRecord.from_record(json.loads(json.dumps(spec.to_record())))
    assert {**vars(sent), "directory": spec.directory, "stdin": None} == vars(spec)
    seen = PreparedJob.of(sent, "/efs/jobs/J1", master_port=29500)
    assert (seen.id, seen.command, seen.processes, seen.name) == ("J1", ("python", "t.py"), 2, "long")
    assert (seen.directory, seen.master_port) == ("/efs/jobs/J1", 29500)


def test_jobs_are_chosen_by_all_of_their_tags():
    record = dict.fromkeys(JobStatus._fields, None)
    status = JobStatus(**{**record, "tags": {"model": "resnet", "lr": "0.1"}})
    assert status.has({})
    assert status.has({"model": "resnet"})
    assert not status.has({"model": "resnet", "lr": "0.2"})


@pytest.mark.parametrize("tags", [{"": "x"}, {"a b": "x"}, {"a": ""}, {"a": "x\ny"}, {"a": "x" * 200}])
def test_a_tag_that_would_break_a_table_is_refused(tags):
    with pytest.raises(JobError, match="can't be a tag"):
        JobSpec(("true",), directory=Path(), tags=tags)


@pytest.mark.parametrize("nodes", [2, (2,), (), (2, 3, 4), "24", ("2", "4"), (2.0, 4.0), (True, 4)])
def test_nodes_in_python_are_two_whole_numbers(nodes):
    cluster = Cluster(cluster_record.Cluster("demo", "local", "us-east-1"))
    with raises_code("node-range"):
        cluster.run(["true"], launcher="torchrun", nodes=nodes)
