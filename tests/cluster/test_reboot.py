"""A node that reboots keeps its disk and its place in the cluster, and its jobs end with that reason."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator

import pytest
from local_clouds import api
from terminals import Terminal, a_cluster, read_until
from verdicts import is_proven

pytestmark = pytest.mark.cluster

SPEC = "name: reboot\ncloud: local\nnodes: 2\nmin: 2\ntype: c5.large\nkeep: no\n"
# The machine's own part takes a second here; then workers hear the head again, and are proven to let it in.
BACK_S = 300.0
LONG_S = 4711


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with a_cluster(SPEC) as terminal:
        yield terminal


def status(terminal: Terminal) -> tuple[str, list[dict]]:
    """The head's public address, and the members."""
    known = json.loads(terminal.phalanx("status", "--json").stdout)
    return known["head_address"], known["nodes"]


def begin(terminal: Terminal, *arguments: str) -> subprocess.Popen[str]:
    """Start a job in the foreground and wait until all its ranks are ready."""
    following = terminal.start("run", "--launcher", "exec", *arguments)
    read_until(following, "ready", times=2)
    return following


def end(terminal: Terminal, following: subprocess.Popen[str]) -> tuple[int, str]:
    """Return how a job ended, and what was shown of it. A slow head is away for longer than `run` tries to reach it."""
    output, _ = following.communicate(timeout=BACK_S)
    code, deadline = following.returncode, time.monotonic() + BACK_S
    while given_up := re.search(r"follow it with `phalanx (logs -f \S+)`", output):
        assert time.monotonic() < deadline, output
        done = terminal.phalanx(*given_up[1].split(), check=False)
        code, output = done.returncode, done.stdout + done.stderr
    return code, output


def assert_is_again(terminal: Terminal, before: tuple[str, list[dict]]) -> None:
    """Wait until the cluster has the same members as before."""
    deadline = time.monotonic() + BACK_S
    while (found := status(terminal)) != before:
        assert time.monotonic() < deadline, found
        time.sleep(1)


def reboot(terminal: Terminal, instance_id: str) -> None:
    api(terminal, "ec2").reboot_instances(InstanceIds=[instance_id])


def assert_all_run_and_none_is_left(terminal: Terminal) -> None:
    """Run a new job on both nodes, which looks for processes of the old ones."""
    done = terminal.phalanx("run", "--", "sh", "-c", f"hostname; ! pgrep -fx 'sleep {LONG_S}'")
    assert len({line.split()[1] for line in done.stdout.splitlines()}) == 2, done.stdout


def test_a_head_that_reboots_is_the_same_head_again_and_reports_its_jobs(terminal):
    finished = terminal.phalanx("run", "--launcher", "exec", "--", "echo", "kept").stderr.split()[1]
    before = status(terminal)
    lost = begin(terminal, "--", "sh", "-c", f"echo ready; exec sleep {LONG_S}")
    again = "echo ready; [ $PHALANX_RESTART = 1 ] || exec sleep 4711; echo again"
    restarted = begin(terminal, "--restarts", "3", "--", "sh", "-c", again)
    reboot(terminal, before[1][0]["instance_id"])
    code, output = end(terminal, lost)
    assert code and "lost" in output and "head lost: it was restarted, and the job's runner ended with it" in output
    assert is_proven(output, 2)
    code, output = end(terminal, restarted)
    assert code == 0 and "restart 1 of 3: head lost: it was restarted" in output and "[1] again" in output
    assert_is_again(terminal, before)
    states = {job["id"]: job["state"] for job in json.loads(terminal.phalanx("jobs", "--json").stdout)}
    assert states[finished] == "succeeded" and "lost" in states.values() and "running" not in states.values()
    assert sorted(terminal.phalanx("logs", finished).stdout.splitlines()) == ["[0] kept", "[1] kept"]
    assert_all_run_and_none_is_left(terminal)


def test_a_worker_that_reboots_stays_a_member_and_its_jobs_end_is_reported(terminal):
    before = status(terminal)
    job = begin(terminal, "--", "sh", "-c", f"echo ready; exec sleep {LONG_S}")
    reboot(terminal, before[1][1]["instance_id"])
    code, output = end(terminal, job)
    # A machine that goes down may accept one more login, which then answers in the same boot.
    assert code and re.search(r"failed after .*: deeplearning-worker2 (rebooted|was lost: )", output), output
    terminal.on("head", f"timeout {BACK_S:.0f} sh -c 'until ssh deeplearning-worker2 true; do sleep 0.2; done'")
    assert_all_run_and_none_is_left(terminal)
    assert_is_again(terminal, before)
