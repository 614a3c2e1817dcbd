"""Several jobs at once on two nodes that are this machine: where small ones go, and how one waits for its turn."""

from __future__ import annotations

import socket

from fake_jobs import outcome, run, wait_for_message

from phalanx.jobs.job import Job, JobSpec, JobState, JobStatus, OutputLine, submit

HOLD = ("sh", "-c", "echo begun; exec sleep 600")
SHOW = ("sh", "-c", "echo ${CUDA_VISIBLE_DEVICES-all} ${JAX_LOCAL_DEVICE_IDS-}; exec sleep 600")
WORKERS = ["deeplearning-worker1", "deeplearning-worker2"]


def start(cluster, code, processes: int | None = None, **options) -> tuple[Job, str]:
    """A job that holds its slots until it is stopped, and the node of its first rank."""
    spec = JobSpec(HOLD, "exec", processes=processes, directory=code, **options)
    job = submit(cluster, spec)
    first = next(event for event in job.follow() if isinstance(event, OutputLine))
    return job, first.node


def start_showing_gpus(cluster, code, launcher: str = "exec", processes: int | None = 1) -> tuple[Job, str, list[str]]:
    """A job that holds its GPUs until it is stopped, its node, and which it sees: its variables' values."""
    job = submit(cluster, JobSpec(SHOW, launcher, processes=processes, directory=code))
    first = next(event for event in job.follow() if isinstance(event, OutputLine))
    return job, first.node[-1], first.data.decode().split()


def test_small_jobs_go_where_most_slots_are_free(two_nodes, code):
    started = [start(two_nodes, code, 1) for _ in range(4)]
    assert [node for _, node in started] == WORKERS * 2
    started[0][0].stop()
    assert start(two_nodes, code, 1)[1] == WORKERS[0]


def test_small_jobs_that_come_at_the_same_time_are_spread_too(two_nodes, code):
    jobs = [submit(two_nodes, JobSpec(HOLD, "exec", processes=1, directory=code), detach=True) for _ in range(4)]
    nodes = [next(event.node for event in job.follow() if isinstance(event, OutputLine)) for job in jobs]
    assert sorted(nodes) == sorted(WORKERS * 2)


def test_a_job_that_fills_free_slots_leaves_those_that_are_taken(two_nodes, code):
    start(two_nodes, code, 1)
    events = list(submit(two_nodes, JobSpec(("echo", "hi"), "exec", processes=3, directory=code)).follow())
    nodes = [event.node for event in events if isinstance(event, OutputLine)]
    assert sorted(nodes) == [WORKERS[0], *[WORKERS[1]] * 2]
    assert {event.message for event in events if isinstance(event, JobStatus)} == {""}


def test_a_job_that_shares_slots_is_reported_with_which_jobs(two_nodes, code):
    first, _ = start(two_nodes, code, 3)
    job = submit(two_nodes, JobSpec(("true",), "exec", per_node=2, directory=code))
    messages = [event.message for event in job.follow() if isinstance(event, JobStatus)]
    taken = "2 of 2 on deeplearning-worker1, 1 of 2 on deeplearning-worker2"
    assert f"it runs on slots that are taken ({taken}) by job {first.id}" in messages
    assert messages[-1] == ""


def test_the_name_of_another_process_s_socket_may_be_anything(two_nodes, code):
    """A job could keep the head from accepting others."""
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(b"\0phalanx-\xff\n\xfe")
        job = submit(two_nodes, JobSpec(("true",), "exec", processes=1, directory=code))
        assert job.wait(120).state is JobState.SUCCEEDED


def test_a_detached_job_says_so_at_once(two_nodes, code):
    first, _ = start(two_nodes, code, 4)
    warnings = []
    submit(two_nodes, JobSpec(HOLD, "exec", directory=code), detach=True, progress=warnings.append).stop()
    assert f"by job {first.id}" in warnings[-1].warning


def test_wait_waits_and_then_runs_alone(two_nodes, code):
    first, _ = start(two_nodes, code, 4)
    waiting = submit(two_nodes, JobSpec(("true",), "exec", processes=2, directory=code, wait=True))
    events = waiting.follow()
    wait_for_message(events, "waiting for slots that are taken (2 of 2 on deeplearning-worker1) by job " + first.id)
    later = submit(two_nodes, JobSpec(("true",), "exec", processes=1, directory=code, wait=True), detach=True)
    wait_for_message(later.follow(), f"waiting for job {waiting.id}, which starts first")
    first.stop()
    assert outcome(events)[1].state is JobState.SUCCEEDED
    assert later.wait(120).state is JobState.SUCCEEDED


def test_of_waiting_jobs_the_one_with_the_highest_priority_starts_first(two_nodes, code):
    first, _ = start(two_nodes, code, 4)
    waiting = []
    for priority in (-1, 0, 7):
        spec = JobSpec(("true",), "exec", processes=4, directory=code, wait=True, priority=priority)
        waiting.append(submit(two_nodes, spec))
        wait_for_message(waiting[-1].follow(), "waiting for")
    wait_for_message(waiting[0].follow(), f"waiting for job {waiting[1].id} and 1 more, which start first")
    first.stop()
    ends = [job.wait(120) for job in waiting]
    assert [end.priority for end in sorted(ends, key=lambda end: end.started_at or 0)] == [7, 0, -1]


def test_waiting_has_a_limit(two_nodes, code):
    first, _ = start(two_nodes, code, 4)
    _, status = run(two_nodes, code, "true", wait=True, wait_limit_s=1)
    assert (status.state, status.processes) == (JobState.FAILED, 0)
    assert status.message.startswith("waited 1 s for slots that are taken")
    assert status.message.endswith(first.id)


def test_a_stop_ends_the_waiting_and_leaves_nothing(two_nodes, code):
    start(two_nodes, code, 4)
    job = submit(two_nodes, JobSpec(("true",), "exec", directory=code, wait=True))
    wait_for_message(job.follow(), "waiting for slots")
    status = job.stop()
    assert (status.state, status.verified) == (JobState.STOPPED, True)
    assert status.message.startswith("stopped on request while waiting for slots")


def test_jobs_that_share_a_node_get_its_free_gpus(two_nodes, code):
    two_nodes.have_gpus(2)
    first, *seen = start_showing_gpus(two_nodes, code)
    assert seen == ["1", ["all"]]
    assert start_showing_gpus(two_nodes, code)[1:] == ("2", ["all"])
    assert start_showing_gpus(two_nodes, code)[1:] == ("1", ["1"])
    assert start_showing_gpus(two_nodes, code, "tensorflow")[1:] == ("2", ["1"])
    first.stop()
    assert start_showing_gpus(two_nodes, code, "jax")[1:] == ("1", ["0", "0"])


def test_a_process_with_several_gpus_takes_them_all(two_nodes, code):
    two_nodes.have_gpus(2)
    first, *seen = start_showing_gpus(two_nodes, code, "jax")
    assert seen == ["1", ["all", "0,1"]]
    start_showing_gpus(two_nodes, code)
    job = submit(two_nodes, JobSpec(("true",), "exec", processes=1, directory=code))
    messages = [event.message for event in job.follow() if isinstance(event, JobStatus)]
    assert f"it runs on GPUs that are taken (2 of 2 on deeplearning-worker1) by job {first.id}" in messages


def test_a_job_without_n_takes_every_gpu(two_nodes, code):
    two_nodes.have_gpus(2)
    whole, _ = start(two_nodes, code)
    job = submit(two_nodes, JobSpec(("true",), "exec", processes=1, directory=code))
    messages = [event.message for event in job.follow() if isinstance(event, JobStatus)]
    assert f"it runs on GPUs that are taken (2 of 2 on deeplearning-worker1) by job {whole.id}" in messages


def test_gpus_that_a_user_chose_are_left_alone(two_nodes, code):
    two_nodes.have_gpus(2)
    start(two_nodes, code, 1, env={"CUDA_VISIBLE_DEVICES": "1"})
    start(two_nodes, code, 1)
    assert start_showing_gpus(two_nodes, code)[1:] == ("1", ["0"])
