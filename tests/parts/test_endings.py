"""How long a job's end may take: with ranks that handle the signal, and with an engine that does not end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from fake_nodes import FakeCluster, marked

from phalanx.jobs.job import JobSpec, JobStatus, OutputLine, submit

# Like torchrun: at the signal it ends its rank, and then takes its time.
LINGERING = """#!/bin/sh
while [ "$1" != --no-python ]; do shift; done
shift
RANK=${FAKE_NODE##*r} "$@" & rank=$!
trap 'kill $rank; trap "" TERM' TERM
wait $rank
sleep 60 & wait
sleep 60
"""
SAVING = """trap 'sleep 2; echo saved; exit 0' TERM; echo on
[ $RANK = 1 ] && exec tail -f /dev/null; sleep 60 & wait
"""


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    cluster = FakeCluster(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "bin" / "torchrun").write_text(LINGERING)
    (tmp_path / "bin" / "torchrun").chmod(0o755)
    return cluster


def end_after_a_kill(
    cluster: FakeCluster, script: str, launcher: str, grace_s: int = 5
) -> tuple[JobStatus, list[bytes], float]:
    """Kill the job's only `tail`; return the last state, the output after that, and the seconds until its end."""
    code = cluster.root / "code"
    job = submit(cluster, JobSpec(("sh", "-c", script), launcher, per_node=1, directory=code, grace_s=grace_s))
    events = job.follow()
    on = 0
    while on < 2:
        on += isinstance(next(events), OutputLine)
    os.kill(wait_for_tail(job.id), signal.SIGKILL)
    killed_at = time.time()
    rest = list(events)
    assert marked(job.id) == []
    status = rest[-1]
    assert isinstance(status, JobStatus) and status.verified
    lines = [event.data for event in rest if isinstance(event, OutputLine)]
    return status, lines, (status.ended_at or 0.0) - killed_at


def wait_for_tail(job_id: str) -> int:
    """Wait for the rank's first output; return the pid of its `tail`."""
    deadline = time.monotonic() + 120
    while True:
        found = [pid for pid in marked(job_id) if command_of(pid).startswith(b"tail")]
        if found:
            return found[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it ended meanwhile


def test_an_engine_whose_ranks_have_ended_is_not_awaited_as_long_as_they(cluster):
    script = "echo on; [ $RANK = 2 ] && exec tail -f /dev/null; exec sleep 60"
    status, _, took_s = end_after_a_kill(cluster, script, "torchrun", grace_s=300)
    assert (
        status.message == "rank 2 on deeplearning-worker2 was ended by SIGKILL (not by the kernel for lack of memory)"
    )
    assert took_s < 60.0, "its own deadlines add up to 4.5 s"


# A shell without a handler ends at the signal, before the program that it waits for.
WRAPPED = f"""[ $RANK = 1 ] && echo on && exec tail -f /dev/null
cat > saving.sh <<'END'
{SAVING}
END
sh saving.sh; true
"""


@pytest.mark.parametrize("script", [SAVING, WRAPPED])
def test_a_rank_has_time_to_save_its_state(cluster, script):
    _, lines, _ = end_after_a_kill(cluster, script, "exec")
    # A shell may also say that its child was terminated.
    assert lines.count(b"saved") == 1 and lines[-1] == b"saved"
