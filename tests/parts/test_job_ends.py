"""Ends of jobs on fake nodes: by themselves, by a stop, by a death, and always verified."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest
from fake_jobs import outcome, run, runner_pid, wait_for_line
from fake_nodes import change_runner, kill_starter, marked

from phalanx.errors import JobError, SharedSilent
from phalanx.jobs.halting import halt
from phalanx.jobs.job import (
    JobSpec,
    JobState,
    submit,
)
from phalanx.runner.head.runner_socket import request_stop


def test_the_first_failure_ends_the_job_and_is_shown(two_nodes, code):
    script = 'if [ $RANK = 1 ]; then seq 30; exit 3; fi; trap "exit 9" TERM; sleep 60 & wait'
    _, status = run(two_nodes, code, "sh", "-c", script)
    assert (status.state, status.exit_code) == (JobState.FAILED, 3)
    assert status.message == "rank 1 on deeplearning-worker2 ended with exit code 3"
    assert status.tail == tuple(str(number) for number in range(11, 31))
    assert status.verified


def test_a_job_that_removes_its_own_directory_is_lost_and_says_so(two_nodes, code):
    with pytest.raises(JobError, match=r"its directory .* was removed"):
        run(two_nodes, code, "sh", "-c", 'rm -rf "$(dirname "$PWD")"; echo gone')


def test_a_signal_is_named_and_counts_as_in_a_shell(two_nodes, code):
    _, status = run(two_nodes, code, "sh", "-c", "[ $RANK = 0 ] && sleep 60; kill -SEGV $$")
    assert status.message == "rank 1 on deeplearning-worker2 was ended by SIGSEGV"
    assert status.process_exit_code == 128 + signal.SIGSEGV


def test_a_process_that_leaves_its_parent_session_and_environment_is_found_and_ended(two_nodes, code):
    (code / "escape.sh").write_text("(setsid env -i sh -c 'sleep 300 & exec sleep 300' &) ; exit 0\n")
    _, status = run(two_nodes, code, "sh", "escape.sh", processes=1)
    assert status.state is JobState.SUCCEEDED
    assert status.verified
    assert status.killed >= 1
    assert "sleep" in status.nodes[0].message


def test_stop_ends_it_everywhere_and_leaves_others_alone(two_nodes, code):
    other = submit(two_nodes, JobSpec(("sleep", "300"), "exec", directory=code), detach=True)
    job = submit(two_nodes, JobSpec(("sh", "-c", "echo on; sleep 300"), "exec", directory=code))
    wait_for_line(job.follow(), "on")
    status = job.stop()
    assert (status.state, status.exit_code, status.process_exit_code) == (JobState.STOPPED, None, 130)
    assert status.verified
    assert marked(job.id) == []
    assert len(marked(other.id)) == 2
    assert job.stop() == status
    assert other.status().state is JobState.RUNNING


def test_a_job_ends_also_when_only_its_runners_socket_can_be_reached(two_nodes, code):
    job = submit(two_nodes, JobSpec(("sh", "-c", "echo on; sleep 300"), "exec", directory=code))
    wait_for_line(job.follow(), "on")
    status = halt(
        two_nodes.remote(), two_nodes.shared, job.id[7:], SharedSilent("the shared directory does not answer")
    )
    assert (status.id, status.state, status.verified) == (job.id, JobState.STOPPED, True)
    assert marked(job.id) == []
    assert job.status().message == "stopped on request"
    with pytest.raises(SharedSilent, match="0 match"):
        halt(two_nodes.remote(), two_nodes.shared, job.id, SharedSilent("the shared directory does not answer"))


def test_a_job_ends_although_whoever_asked_for_that_has_left(two_nodes, code):
    job = submit(two_nodes, JobSpec(("sh", "-c", "trap '' TERM; echo on; sleep 300"), "exec", directory=code))
    wait_for_line(job.follow(), "on")
    assert list(request_stop(job.id, 0.2)) == []
    assert outcome(job.follow())[1].state is JobState.STOPPED
    assert job.status().message == "stopped on request"


def test_a_socket_with_an_odd_name_keeps_no_job_from_being_found(two_nodes, code):
    job = submit(two_nodes, JobSpec(("sh", "-c", "echo on; sleep 300"), "exec", directory=code))
    wait_for_line(job.follow(), "on")
    with socket.socket(socket.AF_UNIX) as odd:
        odd.bind(b"\0a\n\n\xff b")
        status = halt(two_nodes.remote(), two_nodes.shared, job.id, SharedSilent("it does not answer"))
    assert (status.id, status.state) == (job.id, JobState.STOPPED)


def test_a_runner_that_is_killed_takes_the_job_with_it(two_nodes, code):
    job = submit(two_nodes, JobSpec(("sh", "-c", "echo on; exec sleep 300"), "exec", directory=code))
    events = job.follow()
    wait_for_line(events, "on")
    os.kill(runner_pid(job), signal.SIGKILL)
    _, status = outcome(events)
    assert status.state is JobState.LOST
    assert status.verified
    assert marked(job.id) == []
    assert job.status().state is JobState.LOST


def test_a_node_that_is_lost_ends_the_job_and_is_asked_again(two_nodes, code):
    job = submit(two_nodes, JobSpec(("sh", "-c", "echo on; exec env -u NOTHING sleep 300"), "exec", directory=code))
    events = job.follow()
    wait_for_line(events, "on")
    kill_starter(job, "deeplearning-worker2")
    _, status = outcome(events)
    assert status.message.startswith("deeplearning-worker2 was lost")
    assert status.verified
    assert marked(job.id) == []


@pytest.mark.parametrize("hosts", [(), ("deeplearning-worker2",)], ids=["on all nodes", "not on the head"])
def test_a_lost_job_is_settled_without_any_query(two_nodes, code, hosts):
    job = submit(two_nodes, JobSpec(("sh", "-c", "echo on; exec sleep 300"), "exec", directory=code, hosts=hosts))
    wait_for_line(job.follow(), "on")
    os.kill(runner_pid(job), signal.SIGKILL)
    state = Path(job.directory, "state.json")
    deadline = time.monotonic() + 120
    while '"lost"' not in state.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert marked(job.id) == []
    assert outcome(job.follow(wait=False))[1].message.startswith("the job's runner died")


def test_a_starter_that_is_ended_after_the_last_process_changes_no_success(two_nodes, code, monkeypatch):
    signalled = "os.kill(os.getpid(), signal.SIGTERM)"
    end = "elif kind == frames.END:"
    change_runner(monkeypatch, ("runner/starter/starter.py", f"{end}$", f"{end}\n            {signalled}"))
    _, status = run(two_nodes, code, "sh", "-c", "[ $PHALANX_RESTART = 1 ]", processes=1, restarts=1)
    assert [one.died for one in status.attempts] == [False, False]
    assert (status.state, status.message, status.verified) == (JobState.SUCCEEDED, "", True)
