"""`phalanx plan --on-aws` as a process on the local cloud; tests/parts/test_rehearsal.py has the rest."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from local_clouds import api, bad_weather, break_on_purpose
from terminals import Terminal, a_terminal, assert_nothing_is_left

pytestmark = pytest.mark.cluster

SPEC = "name: asked\ncloud: local\nnodes: 2\ntype: c5.large\nkeep: no\nmail: me@example.com\n"


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    """A local cloud that outlives each command, because somebody has a VPC in it."""
    with a_terminal(SPEC) as terminal:
        terminal.phalanx("local", "start")
        api(terminal, "ec2").create_vpc(CidrBlock="10.99.0.0/16")
        yield terminal


def asked(terminal: Terminal, *options: str, status: int = 0) -> dict[str, Any]:
    done = terminal.phalanx("plan", "--on-aws", "--json", *options, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(done.stdout)["on_aws"]


def stacks_of(terminal: Terminal) -> dict[str, str]:
    found = api(terminal, "cloudformation").describe_stacks()["Stacks"]
    return {one["StackName"]: one["StackStatus"] for one in found}


def plant(terminal: Terminal, takes_s: float = 0) -> None:
    break_on_purpose(terminal, change_sets={"takes_s": takes_s})


def begun(terminal: Terminal) -> subprocess.Popen[str]:
    """Start the command; return it when its stack is in review."""
    running = terminal.start("plan", "--on-aws")
    deadline = time.monotonic() + 60
    while "asked" not in stacks_of(terminal):
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.05)
    return running


def test_a_local_cloud_is_started_for_it_and_ended_again():
    with a_terminal(SPEC) as terminal:
        found = asked(terminal)
        assert found["works"] and found["rights"] > 100
        assert found["launches"] == ["c5.large"]
        assert {one["action"] for one in found["changes"]} == {"Add"}
        assert (found["validations"], found["refused"], found["denied"], found["not_checked"]) == ([], [], [], [])
        assert_nothing_is_left(terminal, set())


def test_a_quota_of_the_account_is_a_warning(terminal):
    break_on_purpose(terminal, vpc_limit=1)
    assert [(one["logical_id"], one["blocks"]) for one in asked(terminal)["validations"]] == [("Vpc", False)]
    break_on_purpose(terminal, vpc_limit=None)


def test_ctrl_c_leaves_nothing(terminal):
    plant(terminal, takes_s=6)
    running = begun(terminal)
    running.send_signal(signal.SIGINT)
    shown, _ = running.communicate(timeout=60)
    assert running.returncode == 130, shown
    assert stacks_of(terminal) == {}
    plant(terminal)


def test_what_a_kill_leaves_is_named_and_removed(terminal):
    plant(terminal, takes_s=6)
    running = begun(terminal)
    running.kill()
    running.communicate(timeout=60)
    plant(terminal)
    assert stacks_of(terminal) == {"asked": "REVIEW_IN_PROGRESS"}
    assert terminal.phalanx("reap", "--cloud", "local", check=False).returncode == 1
    terminal.phalanx("down", "--yes")
    assert stacks_of(terminal) == {}


def test_change_sets_may_be_late_and_calls_throttled(terminal):
    with bad_weather(terminal, 3, "change-sets", "throttling", speed=10):
        assert asked(terminal)["works"]
    assert stacks_of(terminal) == {}
