"""Jobs through a fake Slurm that grants, preempts and ends them as the test says."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fake_nodes import FakeCluster, marked
from fake_slurm import FakeSlurm

from phalanx.jobs.job import JOBS, Job, JobSpec, JobState, JobStatus, OutputLine, submit


@pytest.fixture
def cluster(tmp_path: Path):
    """One node; at the end no job of the test may have left anything."""
    cluster = FakeCluster(tmp_path, nodes=1)
    yield cluster
    for directory in (tmp_path / "shared").glob(f"{JOBS}/*"):
        if marked(directory.name):
            Job(cluster, directory.name).stop()
        assert marked(directory.name) == []


def start(cluster: FakeCluster, *command: str, **options) -> Job:
    (cluster.root / "code").mkdir(exist_ok=True)
    options = {"launcher": "exec", "directory": cluster.root / "code", "via": "slurm", **options}
    return submit(cluster, JobSpec(command, **options))


def outcome(events) -> tuple[list[str], JobStatus]:
    lines, status = [], None
    for event in events:
        if isinstance(event, OutputLine):
            lines.append(event.data.decode())
        else:
            status = event
    assert status is not None
    return lines, status


def wait_for_line(events, text: str) -> None:
    for event in events:
        if isinstance(event, OutputLine) and text in event.data.decode():
            return
    raise AssertionError(f"{text!r} never came")


def test_a_job_that_is_preempted_before_it_starts_asks_again_if_it_may(cluster):
    slurm = FakeSlurm(cluster)
    slurm.will_end(1, "PREEMPTED")
    lines, status = outcome(start(cluster, "sh", "-c", "echo restart $PHALANX_RESTART", restarts=1).follow())
    assert lines == ["restart 1"]
    assert (status.state, status.attempt) == (JobState.SUCCEEDED, 1)
    assert slurm.states() == ["PREEMPTED", "COMPLETED"]


def test_one_that_is_preempted_while_it_runs_asks_again_and_another_end_is_final(cluster):
    slurm = FakeSlurm(cluster)
    job = start(cluster, "sh", "-c", "echo restart $PHALANX_RESTART; sleep 600", restarts=5)
    events = job.follow()
    wait_for_line(events, "restart 0")
    slurm.end(1, "PREEMPTED")
    wait_for_line(events, "restart 1")
    slurm.end(2, "TIMEOUT")
    _, status = outcome(events)
    assert (status.state, status.attempt) == (JobState.FAILED, 1)
    assert status.message == "slurm ended 2: TIMEOUT"
    assert status.verified


def test_a_job_that_ends_in_the_queue_after_it_was_preempted_is_known_to_have_left_nothing(cluster):
    slurm = FakeSlurm(cluster)
    slurm.will_end(2, "CANCELLED")
    job = start(cluster, "sh", "-c", "echo restart $PHALANX_RESTART; sleep 600", restarts=5)
    events = job.follow()
    wait_for_line(events, "restart 0")
    slurm.end(1, "PREEMPTED")
    _, status = outcome(events)
    assert (status.state, status.message) == (JobState.FAILED, "slurm ended 2: CANCELLED")
    assert status.verified


@pytest.mark.parametrize(
    ("launcher", "seen"), [("exec", ["2,3"] * 2), ("mpi", ["2,3"] * 2), ("tensorflow", ["2", "3"])]
)
def test_ranks_see_the_gpus_that_were_granted(cluster, launcher, seen):
    slurm = FakeSlurm(cluster, gpus=4)
    slurm.grant(CUDA_VISIBLE_DEVICES="2,3", SLURM_GPUS_PER_TASK="1", SLURM_JOB_GPUS="2,3")
    job = start(cluster, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES $SLURM_JOB_GPUS", launcher=launcher, per_node=2)
    lines, status = outcome(job.follow())
    assert sorted(lines) == seen
    assert status.state is JobState.SUCCEEDED
    assert "SLURM_GPUS_PER_TASK" not in slurm.environment_of_srun()


def test_more_processes_than_gpus_granted_are_refused(cluster):
    FakeSlurm(cluster, gpus=4).grant(CUDA_VISIBLE_DEVICES="1")
    _, status = outcome(start(cluster, "true", launcher="tensorflow", per_node=2).follow())
    assert status.message.startswith("deeplearning-worker1 would run 2 processes but has 1 GPU\nEach")
    assert "--via-option --gpus-per-task=1" in status.message
    assert status.state is JobState.FAILED


@pytest.mark.parametrize(
    ("state", "restarts", "message"),
    [
        ("PREEMPTED", 0, "slurm ended 1: PREEMPTED"),
        ("CANCELLED", 3, "slurm ended 1: CANCELLED"),
        ("FAILED", 3, "slurm ended 1: FAILED: slurmd: no such directory"),
    ],
)
def test_what_ends_before_it_begins_and_may_not_begin_again_says_how(cluster, state, restarts, message):
    FakeSlurm(cluster).will_end(1, state)
    _, status = outcome(start(cluster, "true", restarts=restarts).follow())
    assert (status.state, status.message, status.started_at) == (JobState.FAILED, message, None)


_ENDLESS = "head -c 2000000 /dev/zero | tr '\\0' x"
_HOSTILE = {
    "another encoding": (r"printf 'Ung\374ltig\n' >&2; exit 1", "slurm refused: Ung\ufffdltig"),
    "an option instead of a number": ("echo --user=root", "slurm's answer is no id"),
    "nothing": ("true", "slurm's answer is no id"),
    "no-end": ("exec yes", "slurm's answer has more than"),
    "a reason without end": (rf"printf '\033]0;' >&2; {_ENDLESS} >&2; exit 1", "slurm refused: ]0;xx"),
}


@pytest.mark.parametrize(("sbatch", "message"), _HOSTILE.values(), ids=_HOSTILE)
def test_an_answer_of_a_scheduler_is_words_or_a_number(cluster, sbatch, message):
    slurm = FakeSlurm(cluster)
    slurm.will_run("sbatch", sbatch)
    slurm.will_run("scancel", 'echo "$@" >>cancelled')
    slurm.will_run("scontrol", "echo JobState=CANCELLED")
    _, status = outcome(start(cluster, "true").follow())
    assert status.state is JobState.FAILED
    assert status.message.startswith(message) and len(status.message) < 10_000, status.message[:300]
    assert status.message.replace("\n", "").isprintable()
    assert not (slurm.root / "cancelled").exists()


def test_what_a_site_prints_before_the_number_and_reasons_without_end_are_no_trouble(cluster):
    slurm = FakeSlurm(cluster)
    slurm.will_run("scontrol", f"echo JobState=PENDING Reason=$({_ENDLESS})$(printf '\\033[2J')")
    slurm.will_run("sbatch", "echo 'Welcome!'; echo 42")
    job = start(cluster, "true")
    deadline = time.monotonic() + 30
    while not job.status().message.startswith("queued in slurm as 42 (xxx"):
        assert time.monotonic() < deadline, job.status().message[:300]
        time.sleep(0.1)
    assert len(job.status().message) < 10_000 and job.status().message.isprintable()
    slurm.will_run("scontrol", "echo JobState=CANCELLED")
    assert outcome(job.follow())[1].message == "slurm ended 42: CANCELLED"
