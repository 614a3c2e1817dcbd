"""What a failed job's last lines say to the user."""

from __future__ import annotations

import pytest

from phalanx.jobs.advice import advice
from phalanx.runner.files.job_status import JobState, JobStatus

FAILED = JobStatus("1", "", "mpi", ("python", "a b.py", "--lr", "1"), JobState.FAILED, 0.0, exit_code=1)
# As PyTorch 2.9, Python and NCCL print them.
RENDEZVOUS = (
    "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected"
)
FULL = [
    "RuntimeError: DataLoader worker (pid 12) is killed by signal: Bus error. It is possible that dataloader's workers "
    "are out of shared memory. Please try to raise your shared memory limit.",
    "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
    "RuntimeError: unable to write to file </torch_77_2309_0>: No space left on device (28)",
    "RuntimeError: unable to allocate shared memory(shm) for file </torch_77_2309_0>: Success (0)",
    "OSError: [Errno 28] No space left on device: '/dev/shm/x'",
    "    sl = self._semlock = _multiprocessing.SemLock(\n           ^^^\nOSError: [Errno 28] No space left on device",
    "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-abc (size 9637888)",
    "[ip-10-0-0-4:00123] Signal: Bus error (7)",
]


@pytest.mark.parametrize("line", ["KeyError: 'RANK'", "KeyError: 'LOCAL_RANK'", RENDEZVOUS])
def test_a_script_for_torchrun_is_told_what_to_type(line):
    assert "`phalanx run --launcher torchrun -- 'a b.py' --lr 1`" in advice(FAILED._replace(tail=("x", line)))
    assert advice(FAILED._replace(tail=(line,), launcher="torchrun")) == ""
    assert bool(advice(FAILED._replace(tail=(line,), launcher="exec"))) == ("LOCAL_RANK" in line)
    module = FAILED._replace(tail=(line,), command=("python", "-m", "train"))
    assert "torchrun -- python -m train`" in advice(module)


@pytest.mark.parametrize("line", FULL)
def test_a_full_dev_shm_is_named(line):
    assert "df -h /dev/shm" in advice(FAILED._replace(tail=(line,)))


def test_sigbus_alone_says_it_too():
    assert "/dev/shm" in advice(FAILED._replace(message="rank 0 on x was ended by SIGBUS", exit_code=135))


def test_too_many_open_files_are_named():
    assert "ulimit -n" in advice(FAILED._replace(tail=("OSError: [Errno 24] Too many open files: 'x'",)))


@pytest.mark.parametrize(
    "line", ["KeyError: 'rank'", "KeyError: 'RANKS'", "OSError: No space left on device: '/efs/x'"]
)
def test_other_failures_get_no_advice(line):
    assert advice(FAILED._replace(tail=(line,))) == ""
    assert advice(FAILED._replace(tail=(FULL[0],), state=JobState.STOPPED, exit_code=None)) == ""
