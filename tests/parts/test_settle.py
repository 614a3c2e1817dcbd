"""What is reported of a lost node, and of what a job holds in a scheduler, when its runner has died."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fake_nodes import FakeCluster, kill_marked, kill_starter

from phalanx.jobs.job import Job, JobSpec, OutputLine, submit
from phalanx.launchers import load
from phalanx.runner.batch import allocation
from phalanx.runner.batch.commands import release
from phalanx.runner.batch.scheduling import HELD, AllocationStatus
from phalanx.runner.files import job_record
from phalanx.runner.files.job_status import JobState, JobStatus
from phalanx.runner.head.begin import Runner
from phalanx.runner.head.runner_socket import open_listener
from phalanx.runner.plugins import Plugins
from phalanx.runner.process import RefusedError
from phalanx.runner.system import boot_id


def running(cluster: FakeCluster, code: Path) -> tuple[Job, Iterator[OutputLine | JobStatus]]:
    """Start a job and wait for its two ranks; return it with its later events."""
    code.mkdir()
    job = submit(cluster, JobSpec(("sh", "-c", "echo on; exec sleep 300"), "exec", directory=code))
    events = job.follow()
    on = 0
    while on < 2:
        on += isinstance(next(events), OutputLine)
    return job, events


def test_a_replacement_does_not_answer_for_the_node_before_it(tmp_path: Path):
    cluster = FakeCluster(tmp_path)
    job, events = running(cluster, tmp_path / "code")
    cluster.replace("deeplearning-worker2", "i-99")
    kill_starter(job, "deeplearning-worker2")
    status = [event for event in events if isinstance(event, JobStatus)][-1]
    assert status.message.startswith("deeplearning-worker2 was lost")
    assert [verdict.clean for verdict in status.nodes] == [True, False]
    assert status.nodes[1].message.startswith("could not be checked: i-2 is gone, and its name is i-99's now")
    kill_marked(job.id)  # here its processes run on this machine


def test_a_node_whose_sshd_reloads_its_configuration_is_asked_again(tmp_path: Path):
    """Every new roster makes all sshds reload, often just when nodes are asked because another was lost."""
    cluster, node = FakeCluster(tmp_path), "deeplearning-worker2"
    job, events = running(cluster, tmp_path / "code")
    cluster.down(node)
    kill_starter(job, node)
    with ThreadPoolExecutor() as pool:
        pool.submit(lambda: cluster.up_once_it_refused(node))
        status = [event for event in events if isinstance(event, JobStatus)][-1]
    assert [verdict.clean for verdict in status.nodes] == [True, True], status.nodes


class Refusing:
    """A scheduler that grants an allocation, then fails unexpectedly, and refuses to cancel."""

    NAME = "fake"

    def __init__(self) -> None:
        self.looks = 0

    def submit(self, *_: Any) -> str:
        return "42"

    def status(self, *_: Any) -> AllocationStatus:
        self.looks += 1
        if self.looks == 2:
            raise KeyError("nobody thought of this")
        return AllocationStatus(HELD, "held")

    def cancel(self, *_: Any) -> None:
        raise RefusedError("fake refused: no controller")


def run_with(scheduler: Any, directory: Path, cluster: FakeCluster) -> None:
    """Run a job as the runner's daemon does, in a separate process, because it sets signal handlers."""
    pid = os.fork()
    if pid == 0:
        try:
            os.environ.update(cluster.env)
            allocation._ENDS_BY_ITSELF_S = 0.1
            allocation._FIRST_LOOK_S = allocation._LAST_LOOK_S = 0.1
            job = job_record.read(str(directory))
            plugins = Plugins(load, lambda _: scheduler)
            with open_listener(job.id) as listener:
                status = JobStatus.first(job)
                Runner(str(directory), job, plugins, status).run(listener)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def test_what_a_scheduler_may_still_hold_is_reported_whatever_the_runner_died_of(tmp_path: Path, capfd):
    cluster, directory = FakeCluster(tmp_path), tmp_path / "shared" / "J1"
    (directory / "output").mkdir(parents=True)
    (tmp_path / "code").mkdir()
    like = submit(cluster, JobSpec(("true",), "exec", directory=tmp_path / "code"))
    like.wait(120)
    job = json.loads(Path(like.directory, "job.json").read_text())
    job.update(id="J1", via="fake")
    (directory / "job.json").write_text(json.dumps(job))
    run_with(Refusing(), directory, cluster)
    reported = json.loads((directory / "state.json").read_text())
    assert reported["state"] == "failed"
    assert reported["message"].startswith("phalanx's runner failed: KeyError('nobody thought of this')")
    assert reported["message"].endswith("(fake may still hold 42: fake refused: no controller)")
    assert "Traceback" in capfd.readouterr().err
    (directory / "state.json").write_text(json.dumps({**reported, "allocation": {"scheduler": "fake", "id": "42"}}))
    assert release(str(directory), lambda _: Refusing()) == 1
    assert capfd.readouterr().err == "fake may still hold 42: fake refused: no controller\n"


def accepted(cluster: FakeCluster, code: Path, **changes: Any) -> Path:
    """Return the directory of a job whose runner was killed right after it had written its first state."""
    code.mkdir()
    like = submit(cluster, JobSpec(("echo", "begun"), "exec", processes=1, directory=code))
    like.wait(120)
    directory = Path(like.directory).with_name(f"{like.id}-2")
    shutil.copytree(like.directory, directory, ignore=shutil.ignore_patterns("roster.json", "output", "state.json"))
    job = {**json.loads((directory / "job.json").read_text()), "id": directory.name, **changes}
    (directory / "job.json").write_text(json.dumps(job))
    gone = {"pid": 1, "start": "never", "boot_id": boot_id(), "head": "i-1"}
    (directory / "state.json").write_text(
        json.dumps({**JobStatus.first(job_record.read(str(directory))).to_record(), "runner": gone})
    )
    return directory


def runner(cluster: FakeCluster, directory: Path, *arguments: str) -> str:
    """Run a verb of the job's runner on the head; return its output."""
    argv = [
        "python3",
        "-IS",
        str(directory / "runner.pyz"),
        arguments[0],
        str(directory),
        cluster.stack_id,
        *arguments[1:],
    ]
    done = subprocess.run(argv, env=cluster.env, timeout=120, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode(errors="replace")


def state_of(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "state.json").read_text())


def test_a_job_whose_runner_died_before_it_planned_anything_is_lost(tmp_path: Path):
    cluster = FakeCluster(tmp_path)
    directory = accepted(cluster, tmp_path / "code")
    runner(cluster, directory, "settle")
    job = state_of(directory)
    assert (job["state"], job["message"]) == (
        JobState.LOST,
        "the job's runner died (it was killed, or the head was out of memory)",
    )
    assert [node["clean"] for node in job["nodes"]] == [True, True]


def test_it_starts_again_if_it_may_restart_and_that_counts(tmp_path: Path):
    cluster = FakeCluster(tmp_path)
    directory = accepted(cluster, tmp_path / "code", restarts=1)
    runner(cluster, directory, "settle")
    runner(cluster, directory, "follow", "0")
    job = state_of(directory)
    assert (job["state"], job["attempt"], len(job["attempts"])) == (JobState.SUCCEEDED, 1, 2)
    assert job["attempts"][0]["message"].startswith("the job's runner died")


def test_it_is_lost_when_it_can_not_start_again_and_says_why(tmp_path: Path):
    cluster = FakeCluster(tmp_path)
    directory = accepted(cluster, tmp_path / "code", restarts=1)
    (directory / "job.json").unlink()
    runner(cluster, directory, "settle")
    job = state_of(directory)
    assert job["state"] == JobState.LOST
    assert "it can't start again: " in job["message"] and "job.json" in job["message"]


def test_a_stop_ends_it_though_it_may_restart(tmp_path: Path):
    cluster = FakeCluster(tmp_path)
    directory = accepted(cluster, tmp_path / "code", restarts=1)
    job = json.loads(runner(cluster, directory, "stop", "20"))
    assert (job["state"], job["message"][:40]) == (JobState.STOPPED, "stopped on request; the job's runner die")
    assert state_of(directory) == job


@pytest.mark.parametrize("verb", ["settle", "list"])
def test_a_head_without_a_roster_leaves_it_for_later(tmp_path: Path, verb: str):
    cluster = FakeCluster(tmp_path)
    directory = accepted(cluster, tmp_path / "code")
    (tmp_path / "roster.json").unlink()
    place = {"settle": directory, "list": directory.parent}[verb]
    argv = ["python3", "-IS", str(directory / "runner.pyz"), verb, str(place), cluster.stack_id]
    subprocess.run(argv, env=cluster.env, check=True, timeout=120)
    assert state_of(directory)["state"] == JobState.PENDING
