"""A hopeless head is reported: one that ends again and again, or is silent while its machine runs."""

from __future__ import annotations

import pytest
from fake_cloud import READY, FakeAws

from phalanx.aws import stacks
from phalanx.aws.inventory import drift
from phalanx.aws.model import Heads
from phalanx.cluster import head_watch
from phalanx.cluster.head_watch import HeadWatch
from phalanx.cluster.stack import Creation, NodeAnswered, Stack
from phalanx.errors import CloudError

GROUP = "demo-head"
SAID = {"head": "i-1", "i-1": "boot script", "at": "7"}
CAUSE = "an instance was taken out of service in response to an EC2 health check"


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(head_watch, "time", made)
    return made


def verdict_after(clock, heads, silent_s, progress=None, node_timeout_s=600.0, every_s=1):
    """Return the verdict after the same progress was read again and again for so long."""
    watch = HeadWatch(FakeAws(heads_now=heads))
    watch.hear(progress or {})
    for _ in range(0, silent_s, every_s):
        clock.now += every_s
        watch.hear(progress or {})
    return watch.verdict(GROUP, node_timeout_s)


@pytest.mark.parametrize(("running", "step"), [(True, "boot script"), (False, "workers")])
def test_a_third_head_in_a_row_is_reported(clock, running, step):
    """The step is the one where heads ended, not where the newest has started, and is known after their end."""
    watch = HeadWatch(FakeAws(heads_now=Heads(("i-1", "i-2", "i-3"), CAUSE, running)))
    watch.hear({"head": "i-1", "i-1": "workers", "at": "7"})
    clock.now += 6
    assert watch.verdict(GROUP, 600) == ""
    watch.hear({"head": "i-3", "i-1": "boot script", "i-3": "workers", "at": "8"})
    shown = f"3 heads were launched one after another, and each ended during its step '{step}': {CAUSE}"
    assert watch.verdict(GROUP, 600) == shown


def test_one_replaced_head_is_not_reported(clock):
    assert verdict_after(clock, Heads(("i-1", "i-2"), CAUSE, True), 6, SAID) == ""


def test_an_agent_that_falls_silent_while_its_machine_runs_is_reported(clock):
    shown = verdict_after(clock, Heads(("i-1",), "", True), 61, SAID)
    assert shown == "the head i-1 runs, and its agent was silent for 61 s during its step 'boot script'"
    assert verdict_after(clock, Heads(("i-1",), "", True), 59, SAID) == ""


def test_where_the_api_is_slow_nobody_takes_the_agent_for_ended(clock):
    """What it writes may take as long as these readings do."""
    assert verdict_after(clock, Heads(("i-1",), "", True), 200, SAID, every_s=40) == ""
    assert "silent for 70 s" in verdict_after(clock, Heads(("i-1",), "", True), 280, SAID, every_s=40)


@pytest.mark.parametrize("progress", [SAID, None])
def test_a_short_node_timeout_shortens_the_patience_down_to_15_s(clock, progress):
    heads = Heads(("i-1",), "", True)
    assert verdict_after(clock, heads, 16, progress, node_timeout_s=2) != ""
    assert verdict_after(clock, heads, 14, progress, node_timeout_s=2) == ""


def test_a_head_that_is_gone_is_awaited_because_auto_scaling_replaces_it(clock):
    assert verdict_after(clock, Heads(("i-1",), "", False), 61, SAID) == ""


def test_an_agent_that_was_never_heard_is_reported_after_the_node_timeout(clock):
    heads = Heads(("i-1",), "", True)
    assert "its agent has reported nothing for 601 s" in verdict_after(clock, heads, 601)
    assert verdict_after(clock, heads, 599) == ""


def test_it_polls_rarely(clock):
    assert verdict_after(clock, Heads(("i-1", "i-2", "i-3"), CAUSE, True), 4, SAID) == ""


def test_a_creation_ends_with_the_verdict(monkeypatch):
    monkeypatch.setattr(head_watch, "LOOK_S", 0.0)
    cloud = FakeAws(script=READY[:5], roster=None, heads_now=Heads(("i-1", "i-2", "i-3"), CAUSE, True))
    creation = Creation(Stack(cloud, "demo", stacks.create(cloud, "demo", "{}", {})))
    list(creation.steps())
    assert "3 heads were launched one after another" in creation.failure()


def test_workers_are_reported_as_they_say_hello():
    answered = '[["i-2","10.0.16.5"],["i-3","10.0.16.6"]]'
    cloud = FakeAws(script=READY[:5], roster=None, progress={**SAID, "answered": answered})
    steps = Creation(Stack(cloud, "demo", stacks.create(cloud, "demo", "{}", {"Workers": "3"}))).steps()
    reported = [next(step for step in steps if isinstance(step, NodeAnswered)) for _ in range(2)]
    assert reported == [NodeAnswered("i-2", "10.0.16.5", 2, 4), NodeAnswered("i-3", "10.0.16.6", 3, 4)]


def test_what_somebody_removed_is_reported_when_two_looks_have_missed_it(clock, monkeypatch):
    cloud = FakeAws()
    stack = cloud.put("demo", "CREATE_IN_PROGRESS")
    lost = "PublicRouteTable (rtb-1) has lost its route to 0.0.0.0/0"
    looks = iter([[], [lost], [lost]])
    monkeypatch.setattr(drift, "find", lambda *_: next(looks))
    watch, shown = HeadWatch(cloud), []
    for _ in range(3):
        clock.now += head_watch.COMPARE_S
        shown.append(watch.lost(stack))
    assert shown == ["", "", lost]
    assert watch.lost(stack) == "", "and not at each poll"


def test_a_look_that_aws_refuses_ends_no_creation(clock, monkeypatch):
    cloud = FakeAws()
    stack = cloud.put("demo", "CREATE_IN_PROGRESS")

    def refused(*_):
        raise CloudError("not allowed: iam:ListRolePolicies")

    monkeypatch.setattr(drift, "find", refused)
    watch = HeadWatch(cloud)
    clock.now += head_watch.COMPARE_S
    assert watch.lost(stack) == ""
