"""`down` with a cloud in memory: the stack, leftover resources, this machine's record."""

from __future__ import annotations

from dataclasses import replace

import pytest
from error_codes import raises_code
from fake_cloud import HEAD_FAILED, READY, FakeAws, described, event

from phalanx.aws import stacks
from phalanx.aws.model import Resource, Running
from phalanx.cluster import deletion
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.deletion import DOWN_DEADLINE_S, GROUP, METAL_DEADLINE_S
from phalanx.cluster.stack import Deadline
from phalanx.cluster.take_down import TakeDown
from phalanx.errors import CloudError, ClusterError
from phalanx.ssh.remote import Completed, ConnectionLost, Remote


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def cloud():
    """A cloud with one cluster, of which this machine has a record."""
    cloud = FakeAws()
    Cluster("demo", "local", "us-east-1", cloud.put("demo", "CREATE_COMPLETE")).save()
    return cloud


def test_down_deletes_and_forgets(cloud, state):
    take_down = TakeDown(cloud, "demo")
    list(take_down.steps())
    assert take_down.found
    assert cloud.state("demo") is None
    assert not (state / "clusters/demo").exists()
    assert cloud.stopped == 1


def test_all_machines_end_at_once_before_the_stack_is_deleted(cloud, monkeypatch):
    """CloudFormation would empty one group after the other, and metal takes ten minutes and more to end."""
    calls: list[tuple[str, str]] = []
    call = cloud.call

    def record(service, operation, **arguments):
        if operation in ("update_auto_scaling_group", "delete_stack"):
            calls.append((operation, arguments.get("AutoScalingGroupName", "")))
            if arguments.get("AutoScalingGroupName"):
                assert (arguments["MinSize"], arguments["DesiredCapacity"]) == (0, 0)
        return call(service, operation, **arguments)

    monkeypatch.setattr(cloud, "call", record)
    groups = [Resource(f"{one}Group", f"demo-{one}", GROUP) for one in ("head", "workers")]
    monkeypatch.setattr(stacks, "resources", lambda api, stack_id: groups)
    monkeypatch.setattr(cloud, "update_auto_scaling_group", lambda **_: {}, raising=False)
    list(TakeDown(cloud, "demo").steps())
    ends = [("update_auto_scaling_group", "demo-head"), ("update_auto_scaling_group", "demo-workers")]
    assert calls == [*ends, ("delete_stack", "")]


@pytest.mark.parametrize(("kind", "limit_s"), [("c5.large", DOWN_DEADLINE_S), ("c5.metal", METAL_DEADLINE_S)])
def test_bare_metal_has_longer_to_end(cloud, monkeypatch, kind, limit_s):
    limits: list[float] = []
    after = Deadline.after
    monkeypatch.setattr(
        deletion.Deadline, "after", lambda seconds, what: limits.append(seconds) or after(seconds, what)
    )
    (stack,) = cloud.stacks.values()
    stack.state = replace(stack.state, parameters={**stack.state.parameters, "InstanceType": kind})
    list(TakeDown(cloud, "demo").steps())
    assert max(limits) == limit_s


def test_what_an_interrupted_review_has_left_goes_first(cloud):
    stack_id = cloud.state("demo").stack_id
    list(TakeDown(cloud, "demo").steps())
    assert cloud.reviews_forgotten == [stack_id]


def test_an_update_in_progress_is_awaited_before_the_deletion(cloud):
    cloud.execute_change_set("changes")
    statuses = [step.status for step in TakeDown(cloud, "demo").steps()]
    assert statuses.index("UPDATE_COMPLETE") < statuses.index("DELETE_COMPLETE")
    assert cloud.state("demo") is None


def test_a_second_down_finds_nothing(cloud):
    list(TakeDown(cloud, "demo").steps())
    take_down = TakeDown(cloud, "demo")
    assert list(take_down.steps()) == []
    assert not take_down.found


def test_an_interrupted_deletion_is_completed(state):
    cloud = FakeAws(left=[["instance i-1 (shutting-down)"]])
    stack_id = cloud.put("demo", "DELETE_COMPLETE", script=HEAD_FAILED)
    Cluster("demo", "local", "us-east-1", stack_id).save()
    take_down = TakeDown(cloud, "demo")
    list(take_down.steps())
    assert take_down.found
    assert cloud.deleted_groups == ["physical-LogGroup"]
    assert cloud.left == []
    assert not (state / "clusters/demo").exists()


def shared(cloud: FakeAws, *clusters: str) -> None:
    """Give the cluster a VPC in which these clusters' nodes are."""
    cloud.sharers_now = [*clusters]
    cloud.stacks[cloud.state("demo").stack_id].script = [READY[1]]


def test_what_another_cluster_uses_is_left_until_that_is_down(cloud, state):
    shared(cloud, "other", "gone")
    other = cloud.put("other", "CREATE_COMPLETE")
    with raises_code("used-by-others", "other uses") as e:
        list(TakeDown(cloud, "demo").steps())
    assert "`phalanx down -c other`" in e.value.hint
    assert cloud.state("demo").status == "CREATE_COMPLETE"
    cloud.stacks[other].state = replace(cloud.stacks[other].state, status="DELETE_COMPLETE")
    list(TakeDown(cloud, "demo").steps())
    assert cloud.state("demo") is None


def test_another_cluster_that_may_not_be_looked_at_counts_as_there(cloud, monkeypatch):
    shared(cloud, "other")
    look = cloud.describe_stacks

    def described(StackName):
        if StackName == "other":
            raise CloudError("these AWS credentials may not call cloudformation:DescribeStacks")
        return look(StackName)

    monkeypatch.setattr(cloud, "describe_stacks", described)
    with raises_code("used-by-others", "other uses"):
        list(TakeDown(cloud, "demo").steps())


def test_a_file_system_with_mount_targets_of_others_is_not_deleted(with_data):
    cloud = with_data(b"", file_system="fs-1", keep="no")
    rule = event(8, "NfsFromNodes", "CREATE_COMPLETE", "AWS::EC2::SecurityGroupIngress")
    cloud.stacks[cloud.state("demo").stack_id].script.insert(5, rule)
    with raises_code("used-by-others", "demo's"):
        TakeDown(cloud, "demo")
    assert TakeDown(cloud, "demo", "yes").kept


FILES = [*READY[:5], event(7, "FileSystem", "CREATE_COMPLETE", "AWS::EFS::FileSystem"), READY[5]]


@pytest.fixture
def with_data(monkeypatch):
    """Make a cluster whose shared directory is listed, with a given listing and `keep` in the file."""

    def make(listing: bytes, **spec: str | None) -> FakeAws:
        cloud = FakeAws()
        stack_id = cloud.put("demo", "CREATE_COMPLETE", script=FILES)
        record = Cluster("demo", "local", "us-east-1", stack_id, "54.0.0.1", "/efs", spec=spec).save()
        record.ssh_config.touch()
        monkeypatch.setattr(Remote, "run", lambda *_, **__: Completed(0, listing, b""))
        return cloud

    return make


@pytest.mark.parametrize(
    ("listing", "spec", "answer", "deleted"),
    [
        (b"", {}, False, True),
        (b"./data/a\n", {}, False, False),
        (b"./data/a\n", {}, True, True),
        (b"./data/a\n", {"keep": "no"}, False, True),
        (b"", {"keep": "yes"}, True, False),
    ],
)
def test_data_is_deleted_only_if_empty_or_on_request(with_data, listing, spec, answer, deleted):
    cloud = with_data(listing, **spec)
    asked: list[str] = []
    take_down = TakeDown(cloud, "demo", wanted=lambda contents: asked.append(contents) or answer)
    list(take_down.steps())
    assert cloud.deleted_file_systems == (["physical-FileSystem"] if deleted else [])
    assert (take_down.kept is None) == deleted
    assert asked == (["1 file in /efs, such as data/a"] if listing and not spec else [])


def test_what_the_user_says_now_counts_more_than_the_file(with_data):
    cloud = with_data(b"./a\n", keep="no")
    take_down = TakeDown(cloud, "demo", keep="yes")
    list(take_down.steps())
    assert (cloud.deleted_file_systems, take_down.kept.file_system) == ([], "physical-FileSystem")


def test_it_is_said_whose_data_it_is_and_names_that_are_none_are_left_out(with_data):
    asked: list[str] = []
    listing = b"alice\t./a\nphalanx\t./b c\nalice\t./d\n\x1b[2J\t./e\n"
    TakeDown(with_data(listing), "demo", wanted=lambda contents: bool(asked.append(contents)))
    assert asked == ["4 files in /efs, such as a, which belong to alice, phalanx"]


@pytest.mark.parametrize(
    ("listing", "contents"),
    [
        (
            b"phalanx\t./a\nphalanx\t./b\nphalanx\t./.phalanx/jobs/1/state.json\n",
            "2 files in /efs, such as a, and records of jobs",
        ),
        (b"phalanx\t./.phalanx/jobs/1/state.json\n", "records of jobs in /efs"),
    ],
)
def test_records_of_jobs_are_not_counted_among_the_user_s_files(with_data, listing, contents):
    asked: list[str] = []
    TakeDown(with_data(listing), "demo", wanted=lambda contents: bool(asked.append(contents)))
    assert asked == [contents]


@pytest.fixture
def on_the_head(monkeypatch):
    """Make a cluster whose head serves the shared directory, with a given listing and `keep` in the file."""

    def make(listing: bytes = b"phalanx\t./a\n", **spec: str) -> FakeAws:
        cloud = FakeAws()
        record = Cluster(
            "demo", "local", "us-east-1", cloud.put("demo", "CREATE_COMPLETE", script=READY), "54.0.0.1", "/efs"
        )
        replace(record, spec={"storage": "head", **spec}).save().ssh_config.touch()
        monkeypatch.setattr(Remote, "run", lambda *_, **__: Completed(0, listing, b""))
        return cloud

    return make


def test_data_on_the_head_s_disk_go_only_with_consent(on_the_head):
    cloud, asked = on_the_head(), []
    with raises_code("data-would-be-lost", "1 file in /efs") as refused:
        TakeDown(cloud, "demo", loses=lambda contents: bool(asked.append(contents)))
    assert asked == ["1 file in /efs, such as a"] and "phalanx get" in refused.value.hint
    with pytest.raises(ClusterError, match="nothing was deleted"):
        TakeDown(cloud, "demo", keep="yes")
    assert cloud.state("demo").status == "CREATE_COMPLETE"
    take_down = TakeDown(cloud, "demo", loses=lambda contents: True)
    list(take_down.steps())
    assert take_down.lost == "1 file in /efs, such as a" and cloud.state("demo") is None


@pytest.mark.parametrize(
    ("listing", "spec", "stopped"), [(b"", {}, False), (b"a\t./a\n", {"keep": "no"}, False), (b"a\t./a\n", {}, True)]
)
def test_an_empty_directory_an_order_and_a_stopped_head_need_no_question(on_the_head, listing, spec, stopped):
    cloud = on_the_head(listing, **spec)
    cloud.running_now = Running(nodes=0 if stopped else 1, stopped=stopped, end_s=None)
    asked: list[str] = []
    list(TakeDown(cloud, "demo", loses=lambda contents: bool(asked.append(contents))).steps())
    assert asked == [] and cloud.state("demo") is None


@pytest.mark.parametrize("status", ["DELETE_FAILED", "DELETE_COMPLETE"])
def test_a_deletion_that_was_interrupted_is_not_asked_about_again(on_the_head, monkeypatch, status):
    cloud = on_the_head()
    found = {"Stacks": [described(replace(cloud.state("demo"), status=status))]}
    monkeypatch.setattr(Remote, "run", lambda *_, **__: (_ for _ in ()).throw(ConnectionLost("no way", "")))
    monkeypatch.setattr(cloud, "describe_stacks", lambda **_: found)
    assert TakeDown(cloud, "demo", keep="ask", loses=lambda contents: False).lost == ""


def test_data_that_nobody_can_look_at_is_kept(with_data, monkeypatch):
    cloud = with_data(b"")
    monkeypatch.setattr(Remote, "run", lambda *_, **__: (_ for _ in ()).throw(ConnectionLost("no way", "")))
    list(TakeDown(cloud, "demo").steps())
    assert cloud.deleted_file_systems == []


def test_a_creation_that_never_ended_leaves_nothing():
    cloud = FakeAws()
    cloud.put("demo", "CREATE_IN_PROGRESS", script=FILES[:6])
    list(TakeDown(cloud, "demo").steps())
    assert cloud.deleted_file_systems == ["physical-FileSystem"]


def test_a_stack_of_somebody_else_is_not_touched():
    cloud = FakeAws()
    cloud.put("demo", "CREATE_COMPLETE", ours=False)
    with raises_code("name-taken"):
        list(TakeDown(cloud, "demo").steps())
    assert cloud.state("demo").status == "CREATE_COMPLETE"


def test_a_cluster_that_another_command_creates_again_meanwhile_ends_the_wait_and_stays(cloud):
    """Its resources have the same cluster's tag, so the proof would count them until its deadline."""

    def of_the_new_one(cluster, resources):
        cloud.put("demo", "CREATE_IN_PROGRESS")
        return ["instance i-1 (running)"]

    cloud.leftovers = of_the_new_one
    with raises_code("rival-command", "demo", "creating it again") as failed:
        list(TakeDown(cloud, "demo").steps())
    assert "`phalanx down`" in failed.value.hint
    assert Cluster.load("demo")


def test_the_record_that_another_command_has_written_meanwhile_stays(cloud):
    """`up` writes it, with its new key, before it requests the stack."""
    steps = TakeDown(cloud, "demo").steps()
    next(steps)
    Cluster("demo", "local", "us-east-1").save()
    list(steps)
    assert Cluster.load("demo").stack_id == ""
