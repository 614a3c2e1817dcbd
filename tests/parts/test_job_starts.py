"""Jobs up to their first rank, on fake nodes: what ranks get, and what is reported before they start."""

from __future__ import annotations

import json

import pytest
from error_codes import raises_code
from fake_jobs import outcome, run, wait_for_message

from phalanx.errors import JobError
from phalanx.jobs.job import (
    JOBS,
    JobSpec,
    JobState,
    list_jobs,
    processes,
    submit,
)
from phalanx.launchers import load


def test_every_rank_runs_in_the_copy_with_its_variables(two_nodes, code):
    (code / "data.txt").write_text("from here\n")
    script = "cat data.txt; echo $RANK of $WORLD_SIZE at $MASTER_ADDR, $GREETING, $PHALANX_JOB"
    lines, status = run(two_nodes, code, "sh", "-c", script, env={"GREETING": 'it\'s "me"'})
    assert sorted(lines) == [
        '0: 0 of 2 at deeplearning-worker1, it\'s "me", ' + status.id,
        "0: from here",
        '1: 1 of 2 at deeplearning-worker1, it\'s "me", ' + status.id,
        "1: from here",
    ]
    assert (status.state, status.exit_code, status.processes) == (JobState.SUCCEEDED, 0, 2)
    assert status.verified
    assert status.killed == 0
    assert [verdict.node for verdict in status.nodes] == ["deeplearning-worker1", "deeplearning-worker2"]


@pytest.mark.parametrize("own", [{}, {"PYTHONPATH": "mine"}])
def test_the_module_for_pytorch_travels_with_a_job_behind_the_users_own(two_nodes, code, own):
    (code / "mine").mkdir()
    (code / "mine" / "helper.py").touch()
    names = ["phalanx.torch", *(["helper"] if own else [])]
    script = f"import importlib.util as u; print(*(u.find_spec(name).origin for name in {names}))"
    lines, status = run(two_nodes, code, "/usr/bin/python3", "-c", script, env=own, processes=1)
    job = f"{two_nodes.shared}/.phalanx/jobs/{status.id}"
    found = [f"{job}/library/phalanx/torch.py", *([f"{job}/work/mine/helper.py"] if own else [])]
    assert lines == [f"0: {' '.join(found)}"]


@pytest.mark.parametrize("launcher", ["exec", "mpi"])
def test_words_and_the_working_directory_reach_every_rank_as_they_are(two_nodes, code, launcher):
    (code / "arguments.py").write_text(
        "import json, os, sys\nprint(json.dumps([sys.argv[1:], os.environ['PWD'] == os.getcwd()]))\n"
    )
    arguments = [":", "a b", "", "=", "--x", 'it\'s "q"', "ü", "{}"]
    lines, status = run(two_nodes, code, "python3", "arguments.py", *arguments, launcher=launcher, per_node=1)
    assert [json.loads(line.partition(": ")[2]) for line in lines] == [[arguments, True]] * 2
    assert status.exit_code == 0


@pytest.mark.parametrize("launcher", ["exec", "mpi"])
def test_a_missing_command_is_reported_once_before_any_rank_starts(two_nodes, code, launcher):
    lines, status = run(two_nodes, code, "nosuch", launcher=launcher)
    assert status.exit_code == 127
    assert status.message.startswith("command 'nosuch' is not on deeplearning-worker1, deeplearning-worker2 (PATH ")
    assert [line for line in lines if line[0].isdigit()] == []
    assert status.started_at is None
    assert status.verified


@pytest.mark.parametrize(("launcher", "processes"), [("exec", None), ("mpi", None), ("mpi", 1)])
@pytest.mark.parametrize("arguments", [("train.py",), ("-m", "train")])
def test_a_missing_package_is_reported_once_before_any_rank_starts(two_nodes, code, launcher, processes, arguments):
    (code / "train.py").write_text("import json\nimport nosuch.deep\nprint('began')\n")
    lines, status = run(two_nodes, code, "python3", *arguments, launcher=launcher, processes=processes)
    assert status.message.startswith("no module named 'nosuch' on deeplearning-worker1, which train")
    assert (status.exit_code, status.started_at, status.verified) == (1, None, True)
    assert [line for line in lines if line[0].isdigit()] == []


@pytest.mark.parametrize(
    ("command", "kept"), [("python3 src/train.py", "src/own.py"), ("sh src/x.sh", "src/x.sh"), ("nice ./own", "own")]
)
@pytest.mark.parametrize("size", [0, 2 << 20])
def test_what_an_ignore_file_keeps_here_is_the_reason_and_no_package_to_install(two_nodes, code, command, kept, size):
    (code / "src").mkdir()
    (code / "src/train.py").write_text("import own\n")
    for name in ("src/own.py", "src/x.sh", "own"):
        (code / name).write_text("#!/bin/sh\n")
        (code / name).chmod(0o755)
    (code / "large").write_bytes(bytes(size))  # it is sent in parts
    (code / ".gitignore").write_text("own*\n*.sh\n")
    _, status = run(two_nodes, code, *command.split())
    assert f".gitignore keeps {kept} on" in status.message
    assert f"`!{kept}` in .phalanxignore" in status.message
    assert "requirements.txt" not in status.message


def test_a_missing_engine_is_reported_with_its_recipe(two_nodes, code):
    (code / "train.py").write_text("import mxnet\n")
    _, status = run(two_nodes, code, "python3", "train.py", launcher="dmlc")
    assert status.message.startswith("no module named 'mxnet' on deeplearning-worker1")
    assert status.message.endswith("such as requirements.txt, or use `--recipe mxnet`")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"processes": 9}, "9 processes were requested; 2 nodes have room for 4"),
        ({"per_node": 3}, "3 processes per node were requested; deeplearning-worker1 has 2 slots"),
        ({"env": {"RANK": "7", "MINE": "1"}}, "RANK can't be set: the launcher exec sets it for each process itself"),
        ({"secrets": {"RANK": "7"}}, "RANK can't be set"),
        ({"launcher": "torchrun", "env": {"LOCAL_RANK": "7"}}, "LOCAL_RANK can't be set: the launcher torchrun sets"),
    ],
)
def test_what_can_not_be_started_is_refused_as_in_a_dry_run_and_leaves_no_job(two_nodes, code, asked, message):
    spec = JobSpec(("true",), **{"launcher": "exec", "directory": code, **asked})
    for detach in (False, True):
        with pytest.raises(JobError) as refused:
            submit(two_nodes, spec, detach=detach)
        assert refused.value.message.startswith(message)
    with pytest.raises(JobError) as planned:
        processes(load(spec.launcher), spec, two_nodes.roster)
    assert str(planned.value) == str(refused.value)
    assert list_jobs(two_nodes) == []
    assert list((two_nodes.root / "shared" / JOBS).glob("*")) == []


def test_a_dry_run_shows_what_would_run(two_nodes, code):
    planned = processes(load("exec"), JobSpec(("train", "-x"), "exec", directory=code), two_nodes.roster)
    assert [(process.node[-1], process.argv) for process in planned] == [("1", ("train", "-x")), ("2", ("train", "-x"))]


def test_a_node_that_refuses_is_named_with_the_error_of_ssh(two_nodes, code):
    two_nodes.down("deeplearning-worker2")
    _, status = run(two_nodes, code, "sleep", "60")
    assert status.state is JobState.FAILED
    assert status.message.startswith("deeplearning-worker2 can't be reached: ssh: connect to host")
    assert [verdict.clean for verdict in status.nodes] == [True, False]
    assert "Connection refused" in status.nodes[1].message


def test_a_node_that_has_just_joined_is_awaited(two_nodes, code):
    two_nodes.change_roster(nodes=2)
    two_nodes.down("deeplearning-worker2")
    job = submit(two_nodes, JobSpec(("true",), "exec", directory=code))
    events = job.follow()
    wait_for_message(events, "waiting for deeplearning-worker2: ssh: connect to host deeplearning-worker2 port 22")
    two_nodes.up("deeplearning-worker2")
    _, status = outcome(events)
    assert (status.state, status.attempt, status.processes) == (JobState.SUCCEEDED, 0, 2)


def test_a_node_that_leaves_before_the_job_begins_costs_no_restart(two_nodes, code):
    two_nodes.change_roster(nodes=2)
    two_nodes.down("deeplearning-worker2")
    job = submit(two_nodes, JobSpec(("true",), "exec", directory=code))
    events = job.follow()
    wait_for_message(events, "waiting for deeplearning-worker2")
    two_nodes.change_roster(nodes=1)
    _, status = outcome(events)
    assert (status.state, status.attempt, status.processes) == (JobState.SUCCEEDED, 0, 1)
    assert status.verified


def test_a_head_that_does_not_take_the_job_is_reported(two_nodes, code):
    (two_nodes.root / "roster.json").unlink()
    with raises_code("no-roster", "roster.json"):
        submit(two_nodes, JobSpec(("true",), "exec", directory=code))
    (two_nodes.root / "shared").rename(two_nodes.root / "away")
    (two_nodes.root / "shared").touch()
    with raises_code("runner-not-sent", "mkdir: ") as refused:
        submit(two_nodes, JobSpec(("true",), "exec", directory=code))
    assert f"`phalanx ssh -- df {two_nodes.shared}`" in refused.value.hint
    (two_nodes.root / "shared").unlink()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"command": ()}, "no command"),
        ({"processes": 0}, "-n is 0"),
        ({"per_node": -1}, "-N is -1"),
        ({"name": "a b"}, "'a b'"),
    ],
)
def test_an_invalid_spec_is_refused(changes, message):
    with pytest.raises(JobError, match=message):
        JobSpec(**{"command": ("true",), **changes})
