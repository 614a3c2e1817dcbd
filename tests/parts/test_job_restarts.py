"""Restarts of jobs on fake nodes, after failures of their own and after kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from fake_jobs import outcome, run, runner_pid, wait_for_line
from fake_nodes import kill_marked, kill_starter, pids
from fleet_fakes import until

from phalanx.jobs.job import (
    JobSpec,
    JobState,
    JobStatus,
    OutputLine,
    submit,
)


def test_a_job_that_fails_starts_again_and_keeps_what_each_attempt_wrote(two_nodes, code):
    script = "echo try $PHALANX_RESTART; [ $PHALANX_RESTART = 2 ] || exit 4$PHALANX_RESTART"
    job = submit(two_nodes, JobSpec(("sh", "-c", script), "exec", processes=1, directory=code, restarts=3))
    events = list(job.follow())
    assert [event.data.decode() for event in events if isinstance(event, OutputLine)] == ["try 0", "try 1", "try 2"]
    seen = [(event.state.value, event.attempt) for event in events if isinstance(event, JobStatus)]
    assert [one for n, one in enumerate(seen) if one not in seen[:n]][-3:] == [
        ("pending", 2),
        ("running", 2),
        ("succeeded", 2),
    ]
    assert outcome(job.follow(attempt=1))[0] == ["0: try 1"]
    assert outcome(job.follow(attempt=-1, wait=False))[0] == ["0: try 2"]
    assert sorted(path.name for path in Path(job.directory, "output").glob("rank-0*")) == [
        "rank-0.log",
        "rank-0.restart-1.log",
        "rank-0.restart-2.log",
    ]


def test_a_job_that_fails_the_same_way_at_once_is_not_tried_again(two_nodes, code):
    lines, status = run(two_nodes, code, "sh", "-c", "echo once more; exit 3", processes=1, restarts=5)
    assert lines == ["0: once more", "0: once more"]
    assert status.exit_code == 3
    assert status.message.endswith("(the same failure twice within 5 s of its start, so it is not restarted (1 of 5))")


def test_a_job_whose_runner_was_killed_starts_again(two_nodes, code):
    job = submit(
        two_nodes,
        JobSpec(
            ("sh", "-c", "echo on $PHALANX_RESTART; sleep $((300 - 300 * PHALANX_RESTART))"),
            "exec",
            directory=code,
            restarts=1,
        ),
    )
    events = job.follow()
    wait_for_line(events, "on 0")
    os.kill(runner_pid(job), signal.SIGKILL)
    lines, status = outcome(events)
    assert status.state is JobState.SUCCEEDED
    assert status.attempt == 1
    assert [line for line in lines if "on 1" in line]


def test_a_job_that_began_after_another_does_not_wait_for_it_again(two_nodes, code):
    first = submit(two_nodes, JobSpec(("true",), "exec", processes=1, directory=code), detach=True)
    script = ("sh", "-c", "echo on $PHALANX_RESTART; sleep $((300 - 300 * PHALANX_RESTART))")
    later = JobSpec(script, "exec", processes=1, directory=code, restarts=1, after=(first.id,))
    job = submit(two_nodes, later)
    events = job.follow()
    wait_for_line(events, "on 0")
    shutil.rmtree(first.directory)
    os.kill(runner_pid(job), signal.SIGKILL)
    assert outcome(events)[1].state is JobState.SUCCEEDED


def test_a_restart_leaves_out_the_node_that_is_gone_when_the_roster_is_new(two_nodes, code):
    job = submit(
        two_nodes,
        JobSpec(
            ("sh", "-c", "echo on $WORLD_SIZE; sleep $((300 * (WORLD_SIZE - 1)))"), "exec", directory=code, restarts=1
        ),
    )
    events = job.follow()
    wait_for_line(events, "on 2")
    two_nodes.down("deeplearning-worker2")
    kill_starter(job, "deeplearning-worker2")
    two_nodes.change_roster(nodes=1)
    lines, status = outcome(events)
    assert status.state is JobState.SUCCEEDED
    assert "0: on 1" in lines
    assert [(verdict.node, verdict.clean) for verdict in status.nodes] == [
        ("deeplearning-worker1", True),
        ("deeplearning-worker2", False),
    ]
    kill_marked(job.id)  # on a lost node they could not be reached; here they run on this machine


def test_a_machine_that_shuts_down_ends_all_and_the_job_restarts_when_it_is_back(two_nodes, code):
    command = ("sh", "-c", "echo on $PHALANX_RESTART; sleep $((300 - 300 * PHALANX_RESTART))")
    job = submit(two_nodes, JobSpec(command, "exec", directory=code, restarts=1))
    wait_for_line(job.follow(), "on 0")
    state = Path(job.directory, "state.json")
    # Output may come before the state that says so.
    until(lambda: json.loads(state.read_text())["state"] == "running")
    runner = runner_pid(job)
    watcher = int(Path(f"/proc/{runner}/stat").read_text().rpartition(")")[2].split()[1])

    def of_the_job(argv: list[str], env: list[str]) -> bool:
        return job.id in argv or f"PHALANX_JOB={job.id}" in env or {"settle", job.directory} <= set(argv)

    for pid in {runner, watcher, *pids(of_the_job)}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 120
    while list(pids(of_the_job)):
        assert time.monotonic() < deadline, "processes outlive the shutdown"
        time.sleep(0.05)
    assert json.loads(state.read_text())["state"] == "running"
    lines, status = outcome(job.follow())
    assert (status.state, status.attempt) == (JobState.SUCCEEDED, 1)
    assert [line for line in lines if "on 1" in line]
