"""The load of a job: measured on its nodes, kept in its directory, shown, and summed up at its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_jobs import outcome
from fake_nodes import FakeCluster

from phalanx.jobs import loads
from phalanx.jobs.job import Job, JobSpec, JobState, submit
from phalanx.runner.files import ring
from phalanx.runner.load import Load

BUSY = """
import time
held = bytearray(200 << 20)
print("ready", flush=True)
end = time.monotonic() + 15
while time.monotonic() < end:
    sum(range(100_000))
"""


# As nvidia-smi writes it with --format=csv,noheader,nounits; the second GPU is slowed down by its heat.
NVIDIA_SMI = """#!/bin/sh
while :; do
  echo "0, 97, 40536, 81920, 61, 392.11, 0, 0x0000000000000004"
  echo "1, 3, 1024, 81920, 93, 80.00, [N/A], 0x0000000000000040"
  sleep 1
done
"""


def measured(cluster: FakeCluster, job: Job, is_so: Callable[[Load], bool]) -> list[loads.NodeLoad]:
    """Return the load of both nodes as soon as it is as it should be."""
    deadline = time.monotonic() + 60
    while True:
        found = loads.loads_of(cluster, job.id)
        if len(found) == 2 and all(is_so(one.load) for one in found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.5)


def test_a_job_s_load_is_measured_kept_and_summed_up(two_nodes, code):
    (code / "busy.py").write_text(BUSY)
    job = submit(two_nodes, JobSpec(("python", "busy.py"), "exec", directory=code), detach=True)
    found = measured(two_nodes, job, lambda load: load.memory > 150 << 20)
    assert {one.node for one in found} == {"deeplearning-worker1", "deeplearning-worker2"}
    for one in found:
        assert 0.1 < one.load.cores < 2.5 and one.load.processes >= 1, one
        assert one.load.memory <= one.peak_memory < one.load.node_memory_total
        assert 0 < one.load.node_cores <= one.load.node_cores_total + 0.5
    status = job.wait(120)
    assert status.state is JobState.SUCCEEDED and status.verified and status.killed == 0, status
    assert status.load and "GiB by the job's processes" in status.load[0]
    fine, coarse = ring.read(str(Path(job.directory, "load", "deeplearning-worker2.ring")))
    assert len(fine) >= 2 and len(coarse) >= 1
    assert Path(job.directory, "load", "deeplearning-worker2.ring").stat().st_size <= 2 << 20
    assert loads.loads_of(two_nodes, job.id) == []


def test_figures_of_gpus_come_from_one_nvidia_smi_that_ends_with_the_job(two_nodes, code):
    program = two_nodes.root / "bin" / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    job = submit(two_nodes, JobSpec(("sleep", "1000"), "exec", directory=code), detach=True)
    found = measured(two_nodes, job, lambda load: load.gpus == 2)
    status = job.stop()
    load = found[0].load
    assert (load.gpu_busy, load.gpu_hottest, load.gpu_slowed, load.gpu_errors) == (50, 93, 1, 0)
    assert load.gpu_memory_total == 2 * 81920 << 20 and round(load.gpu_watts) == 472
    assert status.killed == 0 and "GPUs: 50 % busy" in status.load
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(program).encode() in _content(path)]
    assert left == []


def test_a_job_whose_gpus_are_idle_is_stopped_if_that_was_asked(two_nodes, code):
    program = two_nodes.root / "bin" / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    given = {"directory": code, "idle_gpu": "60%:6s", "on_stall": "stop", "grace_s": 1}
    _, status = outcome(submit(two_nodes, JobSpec(("sleep", "1000"), "exec", **given)).follow())
    assert (status.state, status.exit_code) == (JobState.FAILED, 124) and status.verified, status
    assert status.message == "stalled: its GPUs were 50 % busy in the last 6 s"


@pytest.mark.parametrize("script", ["echo 'No devices were found'; exit 6", "sleep 1000"])
def test_an_nvidia_smi_that_fails_or_hangs_is_reported_and_stops_nothing(two_nodes, code, script):
    program = two_nodes.root / "bin" / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    job = submit(two_nodes, JobSpec(("sleep", "15"), "exec", directory=code), detach=True)
    found = measured(two_nodes, job, lambda load: load.gpus == -1)
    assert loads.gpus_in_words(found[0].load) == "nvidia-smi does not answer"
    status = job.wait(60)
    assert status.state is JobState.SUCCEEDED and status.killed == 0, status
    assert "GPUs: nvidia-smi does not answer" in status.load


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
