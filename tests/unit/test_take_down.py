"""Down against a cloud in memory: the stack, its remains, this machine's record."""

from __future__ import annotations

import pytest
from fake_cloud import HEAD_FAILED, FakeCloud

from phalanx.cluster import Cluster
from phalanx.errors import CloudError
from phalanx.take_down import TakeDown


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def cloud():
    """With one cluster, which this machine has a record of."""
    cloud = FakeCloud()
    Cluster("demo", "local", "us-east-1", cloud.put("demo", "CREATE_COMPLETE")).save()
    return cloud


def test_down_deletes_and_forgets(cloud, state):
    take_down = TakeDown(cloud, "demo")
    list(take_down.steps())
    assert take_down.found
    assert cloud.describe_stack("demo") is None
    assert not (state / "clusters/demo").exists()
    assert cloud.stopped == 1


def test_a_second_down_finds_nothing(cloud):
    list(TakeDown(cloud, "demo").steps())
    take_down = TakeDown(cloud, "demo")
    assert list(take_down.steps()) == []
    assert not take_down.found


def test_a_deletion_that_nobody_watched_to_its_end_is_brought_to_it(state):
    cloud = FakeCloud(left=[["instance i-1 (shutting-down)"]])
    stack_id = cloud.put("demo", "DELETE_COMPLETE", script=HEAD_FAILED)
    Cluster("demo", "local", "us-east-1", stack_id).save()
    take_down = TakeDown(cloud, "demo")
    list(take_down.steps())
    assert take_down.found
    assert cloud.deleted_groups == ["physical-LogGroup"]
    assert cloud.left == []
    assert not (state / "clusters/demo").exists()


def test_a_stack_of_somebody_else_is_not_touched():
    cloud = FakeCloud()
    cloud.put("demo", "CREATE_COMPLETE", ours=False)
    with pytest.raises(CloudError, match=r"in use by a stack that phalanx did not make"):
        list(TakeDown(cloud, "demo").steps())
    assert cloud.describe_stack("demo").status == "CREATE_COMPLETE"
