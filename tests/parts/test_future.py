"""Jobs as futures, on fake nodes on this machine."""

from __future__ import annotations

import concurrent.futures
import json
import threading
import time

import pytest
from error_codes import raises_code
from fake_nodes import FakeCluster

from phalanx.jobs.future import JobFailed, JobFuture
from phalanx.jobs.job import Job, JobSpec, JobState, submit


@pytest.fixture
def start(tmp_path):
    """Start a shell script as a job on two nodes."""
    cluster = FakeCluster(tmp_path)
    (tmp_path / "code").mkdir()
    started: list[Job] = []

    def submit_script(script: str) -> JobFuture:
        spec = JobSpec(("sh", "-c", script), "exec", directory=tmp_path / "code")
        started.append(submit(cluster, spec, detach=True))
        return JobFuture(started[-1])

    yield submit_script
    for job in started:
        if not job.status().state.final:
            job.stop()


def test_a_result_shows_how_it_ended_and_what_each_rank_wrote(start):
    future = start("echo out $RANK; echo err >&2")
    result = future.result(timeout=120)
    assert (result.state, result.exit_code, result.verified) == (JobState.SUCCEEDED, 0, True)
    assert [verdict.node for verdict in result.nodes] == ["deeplearning-worker1", "deeplearning-worker2"]
    assert result.output(1, "stdout") == "out 1\n"
    assert sorted(result.output(stream="stdout").splitlines()) == ["out 0", "out 1"]
    assert future.exception() is None
    assert (future.done(), future.running(), future.cancelled(), future.cancel()) == (True, False, False, False)


def test_a_line_of_json_can_be_read_whatever_its_length(start):
    future = start("""python3 -c 'import json; print(json.dumps(list(range(50000))))'""")
    assert json.loads(future.result(timeout=120).output(0)) == list(range(50_000))


def test_a_failure_is_raised_with_its_result_and_last_lines(start):
    future = start("echo so sad; exit 3")
    with raises_code("job-failed", "exit code 3", "  | so sad") as caught:
        future.result(60)
    assert caught.value.result.exit_code == 3
    assert isinstance(future.exception(), JobFailed)


def test_waiting_has_an_end_and_the_job_goes_on(start):
    future = start("sleep 60")
    began = time.monotonic()
    with pytest.raises(concurrent.futures.TimeoutError, match=future.id):
        future.result(timeout=0.3)
    assert time.monotonic() - began < 30
    assert future.running()
    assert future.cancel()
    assert future.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result()


def test_a_callback_is_called_when_it_has_ended(start):
    called = threading.Event()
    future = start("true")
    future.add_done_callback(lambda ended: called.set() if ended is future and ended.done() else None)
    assert called.wait(120)


def test_several_jobs_are_waited_for_as_any_futures_are(start):
    quick, slow = start("true"), start("sleep 60")
    done, pending = concurrent.futures.wait([quick, slow], timeout=120, return_when="FIRST_COMPLETED")
    assert (done, pending) == ({quick}, {slow})
    slow.cancel()
    assert [future.cancelled() for future in concurrent.futures.as_completed([slow], timeout=120)] == [True]


def test_a_job_that_fails_is_an_exception_to_whatever_waits(start):
    (failed,) = concurrent.futures.wait([start("exit 3")], timeout=120, return_when="FIRST_EXCEPTION").done
    assert failed.exception().result.exit_code == 3


def test_its_representation_names_the_job_and_asks_nobody(start):
    future = start("true")
    assert repr(future) == f"<JobFuture {future.id}>"
    future.result(60)
    assert repr(future) == f"<JobFuture {future.id} succeeded>"
