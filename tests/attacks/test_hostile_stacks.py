"""A job tries to have its node's starter read or end another process, or run another program.

All is one user's here, root's in a container: the kernel forbids neither.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from error_codes import raises_code
from fake_jobs import wait_for_line
from fake_nodes import FakeCluster
from py_spy import bring_py_spy

from phalanx.jobs import rank_stacks as stacks
from phalanx.jobs.job import JobSpec, submit
from phalanx.runner import tracer

# It announces another process of the same user as a rank of its own, as a keeper does.
CLAIM = """
import os, socket, sys, time
starter = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
starter.connect("\\0" + os.environ["PHALANX_STARTER"])
fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(2)]
socket.send_fds(starter, [f"claimed {sys.argv[1]}".encode()], fds)
for word in sys.argv[2:]:
    starter.send(word.encode())
print("claimed", flush=True)
time.sleep(1000)
"""


def taken(cluster: FakeCluster, spec: JobSpec, is_so: Callable[[stacks.JobStacks], bool]) -> stacks.JobStacks:
    """Return the stacks of a job as soon as they are as they should be; end the job."""
    job = submit(cluster, spec, detach=True)
    try:
        deadline = time.monotonic() + 60
        while not is_so(found := stacks.take(cluster, job.id)) and time.monotonic() < deadline:
            time.sleep(0.2)
        return found
    finally:
        job.stop()


def test_a_process_that_is_none_of_the_job_is_not_read(tmp_path, code):
    cluster = FakeCluster(tmp_path)
    bring_py_spy(Path(cluster.shared))
    (code / "claim.py").write_text(CLAIM)
    secret = ["python", "-c", "import time; time.sleep(1000)"]
    with subprocess.Popen(secret, env={**os.environ, **cluster.env}) as other:
        spec = JobSpec(("python", "claim.py", str(other.pid)), "exec", processes=1, directory=code)
        found = taken(cluster, spec, lambda found: len(found.ranks) == 2)
        other.kill()
    assert [one.rank for one in found.ranks] == ["0", "claimed"]
    claimed = found.ranks[1]
    assert (claimed.threads, claimed.wchan, claimed.reads, claimed.name) == ((), "", "", ""), claimed
    assert "none of this job" in claimed.why


def test_a_process_that_is_none_of_a_stalled_job_is_not_read_either(tmp_path, code):
    cluster = FakeCluster(tmp_path)
    bring_py_spy(Path(cluster.shared))
    (code / "claim.py").write_text(CLAIM)
    secret = ["python", "-c", "import time; time.sleep(1000)"]
    with subprocess.Popen(secret, env={**os.environ, **cluster.env}) as other:
        command = ("python", "claim.py", str(other.pid))
        spec = JobSpec(command, "exec", processes=1, directory=code, stall_s=6, on_stall="stop", grace_s=1)
        job = submit(cluster, spec)
        status = job.wait(90)
        is_alive = other.poll() is None
        other.kill()
    assert status.message.startswith("stalled: ") and is_alive
    claimed = next(one for one in stacks.take(cluster, job.id).ranks if one.rank == "claimed")
    assert (claimed.threads, claimed.wchan, claimed.reads, claimed.name) == ((), "", "", ""), claimed


@pytest.mark.parametrize("line", ["[]", "{}", '{"asked": "x"}', "{" * 100_000, "\\ud800", ""])
def test_saved_stacks_that_a_job_has_changed_are_refused(tmp_path, code, line):
    cluster = FakeCluster(tmp_path)
    spec = JobSpec(("true",), "exec", processes=1, directory=code)
    job = submit(cluster, spec)
    job.wait(60)
    Path(job.directory, "stacks").mkdir()
    Path(job.directory, "stacks", "0.jsonl").write_text(line + "\n")
    with raises_code("invalid-answer"):
        stacks.take(cluster, job.id)


def test_a_program_in_the_place_of_py_spy_does_not_run_and_is_replaced(tmp_path, code):
    cluster, ran = FakeCluster(tmp_path), tmp_path / "ran"
    bring_py_spy(Path(cluster.shared))
    place = Path(cluster.shared, ".phalanx/tools", f"py-spy-{tracer.VERSION}-{os.uname().machine}")
    genuine = place.read_bytes()
    place.write_text(f"#!/bin/sh\ntouch {ran}; echo '[]'\n")
    command = ("python", "-c", "import time; time.sleep(1000)")
    found = taken(
        cluster, JobSpec(command, "exec", processes=1, directory=code), lambda found: bool(found.ranks[0].frames)
    )
    assert found.ranks[0].place == "<module> (<string>:1)"
    assert not ran.exists() and place.read_bytes() == genuine


@pytest.mark.parametrize("words", [["asked"], [], ["0"]])
def test_a_process_that_is_none_of_the_job_is_not_ended_with_it(tmp_path, code, words):
    cluster = FakeCluster(tmp_path)
    (code / "claim.py").write_text(CLAIM)
    with subprocess.Popen(["sleep", "1000"]) as other:
        command = ("python", "claim.py", str(other.pid), *words)
        try:
            job = submit(cluster, JobSpec(command, "exec", processes=1, directory=code, grace_s=1), detach=True)
            wait_for_line(job.follow(), "claimed")
            job.stop()
            ended = other.poll()
        finally:
            other.kill()
    assert ended is None


@pytest.mark.parametrize("pid", ["x", "9" * 30])
def test_a_pid_that_no_process_has_ends_neither_the_job_nor_others(tmp_path, code, pid):
    cluster = FakeCluster(tmp_path)
    (code / "claim.py").write_text(CLAIM.replace("time.sleep(1000)", "time.sleep(0.5)"))
    command = ("python", "claim.py", pid)
    status = submit(cluster, JobSpec(command, "exec", processes=1, directory=code)).wait()
    assert status.state == "succeeded", status
