"""Another command deletes the cluster, or stops its cloud, while `up` brings it up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from error_codes import raises_code
from fake_cloud import FakeAws, demo, up

from phalanx.aws.model import Running
from phalanx.cluster.bring_up import BringUp
from phalanx.errors import CloudError, NotRunning
from phalanx.ssh.remote import ConnectionLost, Remote

pytestmark = pytest.mark.usefixtures("in_memory")


def deleted_at(step, cloud):
    """Another `down` deletes the stack once `up` has shown so many steps."""
    making = BringUp(cloud, demo())
    steps = making.steps()
    for _ in range(step):
        next(steps)
    cloud.delete_stack("arn:stack/demo/1")
    list(steps)


def test_a_creation_that_another_command_deletes_is_reported_in_a_sentence_and_can_be_repeated():
    cloud = FakeAws()
    with raises_code("rival-command", "has deleted cluster demo", "`phalanx down`") as failed:
        deleted_at(3, cloud)
    assert "`phalanx up`" in failed.value.hint
    result, _ = up(cloud)
    assert not result.already


def test_a_cluster_that_another_command_deletes_is_not_reported_as_ready(monkeypatch):
    """The other command has removed the record that ssh reads, too."""
    cloud = FakeAws()

    def connect(remote):
        cloud.stacks.clear()
        raise ConnectionLost("can't log in to deeplearning-worker1: Can't open user config file", "")

    monkeypatch.setattr(Remote, "connect", connect)
    with raises_code("rival-command", "has deleted cluster demo"):
        up(cloud)


def test_a_cluster_that_is_being_deleted_while_up_starts_its_nodes_is_that(monkeypatch):
    cloud = FakeAws()
    up(cloud)
    cloud.running_now = Running(2, True, None)

    def refuse(*_):
        stack = next(iter(cloud.stacks.values()))
        stack.state = replace(stack.state, status="DELETE_IN_PROGRESS")
        raise CloudError("the roster of cluster demo is empty", "Run `phalanx down`, then `phalanx up`.")

    monkeypatch.setattr(cloud, "start_nodes", refuse, raising=False)
    with raises_code("rival-command", "is deleting cluster demo") as failed:
        up(cloud)
    assert "`phalanx up`" in failed.value.hint


def test_an_up_whose_local_cloud_another_command_stops_says_so(monkeypatch):
    cloud = FakeAws()

    def gone(**_):
        raise NotRunning("the local cloud is not running", "")

    def stopped(**_):
        cloud.describe_stacks = gone
        gone()

    monkeypatch.setattr(cloud, "create_stack", stopped)
    with raises_code("rival-command", "the local cloud", "`phalanx down`"):
        up(cloud)
