"""A job that stands still is found, its odd rank is named, and it is reported, stopped or started again."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_jobs import outcome, wait_for_line, wait_for_message
from fake_nodes import FakeCluster, marked
from hanging_files import READ, a_hanging_file_system
from py_spy import bring_py_spy

from phalanx.cli import why
from phalanx.jobs import rank_stacks as stacks
from phalanx.jobs.job import Job, JobSpec, JobState, submit

TRAIN = """
import os, sys, threading, time

def all_reduce():
    time.sleep(1000)

def sleep():
    time.sleep(1000)

def lock():
    held = threading.Lock()
    held.acquire()
    held.acquire()

def load():
    open(sys.argv[3]).read()

def leave():
    sys.exit()

rank = os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
is_second = os.path.exists(os.environ.get("MARK_FILE", "/none"))
for step in range(1, 6):
    print("step" if sys.argv[2] == "steps" else "number", step, flush=True)
    time.sleep(0.1)
if is_second:
    sys.exit()
if "MARK_FILE" in os.environ and rank == "0":
    time.sleep(3)
    open(os.environ["MARK_FILE"], "w").close()
globals()[sys.argv[1] if rank == "1" else "all_reduce"]()
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    cluster = FakeCluster(tmp_path, slots=4)
    bring_py_spy(Path(cluster.shared))
    yield cluster


def started(cluster: FakeCluster, code: Path, *arguments: str, launcher: str = "exec", **options) -> Job:
    (code / "train.py").write_text(TRAIN)
    command = ("python", "train.py", *arguments)
    given = {"stall_s": 6, "step": r"step (\d+)", "grace_s": 1, **options}
    return submit(cluster, JobSpec(command, launcher, processes=4, per_node=2, directory=code, **given), detach=True)


ODD = {
    "sleep": "rank 1 waits in sleep (train.py:8)",
    "lock": "rank 1 waits in lock (train.py:13)",
    "leave": "rank 1 has ended",
}


@pytest.mark.parametrize("shows", ["steps", "lines"])
@pytest.mark.parametrize("kind", list(ODD))
def test_the_rank_for_which_the_others_wait_is_named_and_the_job_is_stopped(cluster, code, kind, shows):
    job = started(cluster, code, kind, shows, on_stall="stop", restarts=2)
    _, status = outcome(job.follow())
    assert (status.state, status.exit_code, status.attempt) == (JobState.FAILED, 124, 0), status
    what = "no step" if shows == "steps" else "no output"
    assert status.message.startswith(f"stalled: {what}") and ODD[kind] in status.message, status.message
    assert "all_reduce (train.py:5)" in status.message and status.verified
    saved = stacks.take(cluster, job.id)
    assert saved.saved_at > status.submitted_at and saved.occasion == status.message
    assert ODD[kind] in list(stacks.summary(saved, saved.groups()))
    # The last lines are those of the odd rank, and not of one that waits for it.
    assert status.tail and "5" in status.tail[-1]
    assert marked(job.id) == []


def test_a_rank_that_a_signal_stopped_is_named_in_the_job_while_it_runs_and_it_may_go_on(cluster, code, monkeypatch):
    job = started(cluster, code, "all_reduce", "lines")
    events = job.follow()
    wait_for_line(events, "number 5")
    deadline = time.monotonic() + 60
    while len(found := stacks.take(cluster, job.id).ranks) < 4 or not all(one.frames for one in found):
        assert time.monotonic() < deadline
    pid = next(one.pid for one in found if one.rank == "1")
    os.kill(pid, signal.SIGSTOP)
    wait_for_message(events, "stalled: no output")
    status = job.status()
    assert status.state is JobState.RUNNING and "rank 1 is stopped by a signal in all_reduce" in status.message
    monkeypatch.setattr(FakeCluster, "ready", True, raising=False)
    monkeypatch.setattr(why.Cluster, "load", lambda _: cluster)
    said = why._from_head("demo")["stalled"]
    assert job.id in said and "rank 1 is stopped by a signal" in said
    os.kill(pid, signal.SIGCONT)
    while job.status().message:
        assert time.monotonic() < deadline + 60
        time.sleep(0.5)
    wait_for_message(events, "stalled: no output")
    status = job.stop()
    assert status.message.startswith("stopped on request; it was stalled: ") and status.state is JobState.STOPPED


def test_a_rank_that_reads_from_a_frozen_directory_is_named_with_the_file(cluster, code, tmp_path):
    path = str(tmp_path / "away" / "file")
    # The rank can't end before the directory answers.
    with a_hanging_file_system(tmp_path / "away", READ, 1 << 20) as hangs:
        job = started(cluster, code, "load", "steps", path)
        assert hangs.wait(60)
        wait_for_message(job.follow(), "stalled: no step")
        message = job.status().message
    job.stop()
    assert "rank 1 " in message and "in load (train.py:16)" in message
    (odd,) = stacks.take(cluster, job.id).groups()[0]
    assert (odd.rank, odd.reads) == ("1", path)


@pytest.mark.parametrize("launcher", ["exec", "mpi"])
def test_a_stalled_job_is_started_again_as_often_as_allowed(cluster, code, tmp_path, launcher):
    env = {"MARK_FILE": str(tmp_path / "mark")}
    job = started(cluster, code, "lock", "steps", launcher=launcher, on_stall="restart", restarts=1, env=env)
    _, status = outcome(job.follow())
    assert (status.state, status.attempt) == (JobState.SUCCEEDED, 1), status
    attempts = json.loads(Path(job.directory, "state.json").read_text())["attempts"]
    assert "rank 1 waits in lock" in attempts[0]["message"] and attempts[0]["exit_code"] == 124
    assert Path(job.directory, "stacks", "0.jsonl").exists()


def test_a_job_whose_stacks_or_steps_change_is_not_stalled(cluster, code):
    (code / "train.py").write_text(
        "import time\nbegin = time.monotonic()\nwhile time.monotonic() < begin + 20:\n"
        "    time.sleep(0.5)\n    sum(range(10**6))\n    time.sleep(0.7)\n"
    )
    spec = JobSpec(("python", "train.py"), "exec", processes=2, directory=code, stall_s=6, on_stall="stop")
    _, status = outcome(submit(cluster, spec).follow())
    assert status.state is JobState.SUCCEEDED, status


def test_what_ranks_do_that_do_not_end_in_time_is_kept(cluster, code):
    (code / "stay.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "def save():\n    print('saves', flush=True)\n    time.sleep(1000)\nsave()\n"
    )
    spec = JobSpec(("python", "stay.py"), "exec", processes=1, directory=code, grace_s=4)
    job = submit(cluster, spec, detach=True)
    wait_for_line(job.follow(), "saves")
    assert job.stop().killed >= 1
    saved = stacks.take(cluster, job.id)
    assert [one.place for one in saved.ranks] == ["save (stay.py:5)"] and "within 4 s of SIGTERM" in saved.occasion
