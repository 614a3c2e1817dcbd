"""What the head does about the lease's end and about a cluster that nobody uses."""

from types import SimpleNamespace

import pytest

from phalanx.node import activity
from phalanx.node.limits import Limits

BLOCK = "cr-0123456789abcdef0"
STACK = "arn:aws:cloudformation:us-east-1:123456789012:stack/demo/1"


class Group:
    """An Auto Scaling group in memory, with the stack's settings."""

    def __init__(self, idle_s=0, topic="", end=0.0, cleared=0.0):
        self.idle_s, self.topic, self.end, self.cleared = idle_s, topic, end, cleared
        self.is_stopped, self.mails = False, []

    def settings(self, stack_id):
        assert stack_id == STACK
        return self.idle_s, self.topic

    def block_end(self, reservation):
        assert reservation == BLOCK
        return self.cleared + 1800

    def lease_end(self):
        return self.end

    def stop(self):
        self.is_stopped = True

    def publish(self, topic, subject, text):
        self.mails.append((topic, subject, text))


@pytest.fixture
def head(monkeypatch):
    """Build the limits of a cluster whose nodes were used last at `used`."""
    used = {"head": 0.0, "workers": 0.0}
    monkeypatch.setattr(activity, "last_use", lambda: used["head"])
    monkeypatch.setattr(activity, "show", lambda text: None)

    def build(settled=True, **group) -> Limits:
        made, log = Group(**group), SimpleNamespace(say=lambda line: None)
        block = BLOCK if made.cleared else ""
        settings = SimpleNamespace(cluster="demo", shared="/efs", stack_id=STACK, block=block)
        agent = SimpleNamespace(
            settings=settings, log=log, fleet=made, own_group=Group(end=made.end), settled=settled, root="/nowhere"
        )
        limits = Limits(agent, lambda: used["workers"])
        limits.used = used
        return limits

    return build


def test_a_lease_is_announced_three_times_and_names_what_is_lost(head):
    limits = head(end=10_000.0, topic="arn:topic")
    for now in (8000.0, 8201.0, 8300.0, 9401.0, 9500.0, 9881.0, 9900.0):
        limits.look(now)
    mails = [text for _, _, text in limits.agent.fleet.mails]
    assert [text.split("ends in ")[1].split(",")[0] for text in mails] == ["30 min", "10 min", "2 min"]
    assert "at 02:46 UTC" in mails[0] and "`phalanx extend` moves it" in mails[0]
    assert "What is not in /efs is lost" in limits.notice


def test_an_extended_lease_is_announced_again(head):
    limits = head(end=1000.0)
    limits.look(0.0)
    first = limits.notice
    limits.agent.own_group.end = 9000.0
    limits.look(10.0)
    assert limits.notice == first
    limits.look(7300.0)
    assert "ends in 28 min" in limits.notice


def test_the_end_of_a_capacity_block_is_announced_and_all_nodes_leave_ten_minutes_before_ec2_clears_it(head):
    limits = head(cleared=9000.0, topic="arn:topic")
    limits.look(7199.0)
    assert (limits.notice, limits.all_leave) == ("", "")
    limits.look(7201.0)
    assert "EC2 clears the Capacity Block in 30 min, at 02:30 UTC: it terminates all nodes in it." in limits.notice
    assert limits.all_leave == ""
    limits.look(8400.0)
    assert limits.all_leave == "EC2 clears the Capacity Block at 02:30 UTC"
    assert len(limits.agent.fleet.mails) == 2


def test_an_extended_capacity_block_keeps_its_nodes(head):
    limits = head(cleared=9000.0)
    limits.look(8400.0)
    limits.agent.fleet.cleared = 90_000.0
    limits.look(9001.0)
    assert limits.all_leave == ""


def test_nobody_gets_a_mail_who_did_not_want_one(head):
    limits = head(end=1000.0)
    limits.look(0.0)
    assert limits.notice and not limits.agent.fleet.mails


def test_an_unused_cluster_is_warned_and_then_stopped(head):
    limits = head(idle_s=1800)
    limits.used["head"] = 100.0
    limits.look(100.0)
    assert limits.notice == ""
    limits.look(1400.0)
    assert "nobody has used the cluster for 22 min; in 8 min it stops" in limits.notice
    assert not limits.agent.fleet.is_stopped
    limits.look(1901.0)
    assert limits.agent.fleet.is_stopped and limits.agent.own_group.is_stopped
    assert "it stops. `phalanx up` starts it again" in limits.notice


@pytest.mark.parametrize("where", ["head", "workers"])
def test_use_of_any_node_starts_the_time_anew(head, where):
    limits = head(idle_s=1800)
    limits.used["head"] = 100.0
    limits.look(1400.0)
    limits.used[where] = 1500.0
    limits.look(2000.0)
    assert not limits.agent.fleet.is_stopped
    limits.look(2900.0)
    assert "in 7 min it stops" in limits.notice


def test_a_cluster_that_is_not_ready_yet_is_not_idle(head):
    limits = head(idle_s=60, settled=False)
    limits.look(5000.0)
    assert not limits.agent.fleet.is_stopped


def test_without_limits_nothing_is_looked_at(head):
    limits = head()
    limits.look(1e9)
    assert limits.notice == "" and not limits.agent.fleet.is_stopped


def test_a_head_that_has_just_started_is_not_idle(head):
    """`up` starts a stopped cluster again, whose head knows of no use yet."""
    limits = head(idle_s=60)
    limits.look(5000.0)
    assert not limits.agent.fleet.is_stopped
    limits.look(5061.0)
    assert limits.agent.fleet.is_stopped
