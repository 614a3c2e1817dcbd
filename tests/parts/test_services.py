"""Jobs whose processes have roles, services and ports, on fake nodes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from fake_nodes import FakeCluster, change_runner, marked
from ports import free_port

from phalanx.jobs.job import JobSpec, JobState, JobStatus, OutputLine, submit
from phalanx.runner.starter.check import taken

# What each role of a parameter server does: servers and scheduler serve until they are ended.
SERVE = 'case $DMLC_ROLE in worker) {worker};; *) trap "echo ended; exit 7" TERM; sleep 60 & echo serving; wait;; esac'


@pytest.fixture
def cluster(tmp_path: Path):
    """Two nodes; at the end no job of the test may have left anything."""
    cluster = FakeCluster(tmp_path)
    yield cluster
    for directory in (tmp_path / "shared").glob(".phalanx/jobs/*"):
        assert marked(directory.name) == []


def run(cluster, code: Path, *command: str, **options) -> tuple[list[str], JobStatus]:
    """Run a dmlc job; return its lines as "process: text", and its final status."""
    lines, status = [], None
    for event in submit(cluster, JobSpec(command, "dmlc", per_node=1, directory=code, **options)).follow():
        if isinstance(event, OutputLine):
            lines.append(f"{event.process}: {event.data.decode()}")
        else:
            status = event
    assert status is not None
    return lines, status


def when_all_serve(cluster, worker: str) -> str:
    """Write a worker that starts only once the services' output has reached the head."""
    jobs = f"{cluster.shared}/.phalanx/jobs"
    everywhere = f"[ $(cat {jobs}/$PHALANX_JOB/output/*er*.log | grep -c serving) -ge 3 ]"
    return SERVE.replace("{worker}", f"until {everywhere}; do sleep 0.1; done; {worker}")


def test_services_end_when_the_workers_are_done_and_the_job_is_well(cluster, code):
    lines, status = run(cluster, code, "sh", "-c", when_all_serve(cluster, "echo done $DMLC_NUM_WORKER"))
    assert (status.state, status.exit_code, status.message) == (JobState.SUCCEEDED, 0, "")
    assert status.verified
    assert status.processes == 2
    done = {"worker 0: done 2", "worker 1: done 2"}
    assert set(lines) == done | {"scheduler: serving", "server 0: serving", "server 1: serving"}


def test_a_service_that_fails_first_fails_the_job(cluster, code):
    script = 'if [ "$DMLC_ROLE$DMLC_TASK_ID" = server1 ]; then echo no memory; exit 9; fi; sleep 60 & wait'
    _, status = run(cluster, code, "sh", "-c", script)
    assert status.message == "server 1 on deeplearning-worker2 ended with exit code 9"
    assert (status.state, status.exit_code) == (JobState.FAILED, 9)
    assert status.tail == ("no memory",)
    assert status.verified


def test_a_worker_that_dies_ends_its_services(cluster, code):
    dies = 'if [ "$DMLC_TASK_ID" = 1 ]; then kill -9 $$; fi; sleep 60 & wait'
    _, status = run(cluster, code, "sh", "-c", when_all_serve(cluster, dies))
    assert (
        status.message == "worker 1 on deeplearning-worker2 was ended by SIGKILL (not by the kernel for lack of memory)"
    )
    assert status.verified


def test_a_port_that_is_taken_refuses_the_job_when_no_other_is_possible(cluster, code, monkeypatch):
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]
        # With only one port to choose, this is like a port that the user has set.
        give_runner_ports(monkeypatch, port, 1)
        lines, status = run(cluster, code, "sh", "-c", "echo began")
    assert (status.state, status.exit_code) == (JobState.FAILED, 2)
    assert status.message == f"port {port} on deeplearning-worker1 is taken"
    assert lines == []
    assert status.started_at is None
    assert status.verified


def test_ports_that_phalanx_chose_are_chosen_again(cluster, code, monkeypatch):
    first = free_port(adjacent=2)
    with socket.create_server(("", first)):
        give_runner_ports(monkeypatch, first, 2)
        lines, status = run(cluster, code, "sh", "-c", "echo $DMLC_PS_ROOT_PORT", processes=1)
    assert (status.state, status.attempt) == (JobState.SUCCEEDED, 0)
    assert f"worker 0: {first + 1}" in lines


def give_runner_ports(monkeypatch, first: int, ports: int) -> None:
    """Let runners of this test's jobs choose only from these ports, in order."""
    change_runner(
        monkeypatch,
        ("runner/process.py", r"^FIRST_PORT = .*$", f"FIRST_PORT = {first}"),
        ("runner/process.py", r"^PORTS = .*$", f"PORTS = {ports}"),
        ("runner/head/planner.py", r"int\.from_bytes\(os\.urandom.*\)", "0"),
    )


def test_the_code_is_copied_to_the_users_directory_and_runs_there(cluster, code, tmp_path):
    there = tmp_path / "nodes own" / "train"
    (code / "lib").mkdir()
    (code / "lib" / "text").write_text("first")
    arguments = ("sh", "-c", 'pwd; cat lib/text; echo; echo left > "made-$DMLC_ROLE"')
    lines, status = run(cluster, code, *arguments, sync_dir=str(there), processes=1)
    assert status.state is JobState.SUCCEEDED
    assert {line for line in lines if line.startswith("worker")} == {f"worker 0: {there}", "worker 0: first"}
    (code / "lib" / "text").write_text("second")
    lines, _ = run(cluster, code, *arguments, sync_dir=str(there), processes=1)
    assert "worker 0: second" in lines
    assert (there / "made-worker").exists()


def test_a_directory_that_can_t_hold_the_code_is_reported(cluster, code):
    (code / "t.py").write_text("")
    _, status = run(cluster, code, "true", sync_dir="/dev/null/train")
    nodes = "deeplearning-worker1, deeplearning-worker2"
    text = f"the code can't be copied to /dev/null/train on {nodes}: /dev/null/train: Not a directory"
    assert status.message == text
    assert status.started_at is None


def test_a_job_stays_on_the_nodes_that_were_chosen(cluster, code):
    lines, status = run(cluster, code, "sh", "-c", "echo $DMLC_NODE_HOST", hosts=("deeplearning-worker2",))
    assert {line for line in lines if line.startswith("worker")} == {"worker 0: 10.0.1.2"}
    assert status.processes == 1


def test_a_port_is_taken_while_something_listens_there():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert taken([port]) == [port]
    assert taken([port]) == []
