"""`up` with a cloud in memory: from any earlier state, and with any failure."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from fake_cloud import HEAD_FAILED, READY, STACK, FakeCloud, event, roster, write_key

from phalanx import template
from phalanx.clouds.protocol import Running, StackChange
from phalanx.cluster import bring_up
from phalanx.cluster import cluster_record as store
from phalanx.cluster.bring_up import BringUp, Note
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.update import Proposal
from phalanx.errors import CloudError, ClusterError, NotRunning, StackFailed
from phalanx.plan.machine_images import Image
from phalanx.spec.spec import ClusterSpec
from phalanx.ssh.remote import ConnectionLost, NotListening, Remote


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(Remote, "connect", lambda remote: None)
    monkeypatch.setattr(store, "_generate", write_key)
    monkeypatch.setattr(template, "request", lambda plan: ("{}", plan.parameters()))
    return tmp_path / "state"


def spec(**values):
    return ClusterSpec(**{"name": "demo", "nodes": 2, **values})


def up(cloud, **values):
    making = BringUp(cloud, spec(**values))
    steps = list(making.steps())
    return making.result, [step.text for step in steps if isinstance(step, Note)]


def test_up_leaves_a_record_that_ssh_can_use():
    result, _ = up(FakeCloud())
    assert not result.already
    cluster = Cluster.load("demo")
    assert (cluster.head_address, cluster.shared, cluster.slots) == ("54.0.0.1", "/efs", 2)
    assert "ProxyCommand dial %h %p" in cluster.ssh_config.read_text()


def test_a_head_that_ssh_does_not_reach_is_reported_and_the_cluster_kept(monkeypatch):
    def refuse(remote):
        raise ConnectionLost("can't log in to deeplearning-master: timeout", "Does `ssh_from` allow your address?")

    monkeypatch.setattr(Remote, "connect", refuse)
    result, notes = up(FakeCloud())
    assert notes == ["warning: can't log in to deeplearning-master: timeout. Does `ssh_from` allow your address?"]
    assert result.cluster.ready


@pytest.mark.parametrize(("name", "user"), [("debian-12-amd64-20261101", "admin"), ("al2023-ami-2023.12", "ec2-user")])
def test_the_administrator_is_the_image_s_own(monkeypatch, name, user):
    cloud = FakeCloud()
    monkeypatch.setattr(cloud, "image", lambda _: Image("ami-1", name, "x86_64", "/dev/xvda", 8))
    assert up(cloud)[0].cluster.admin_user == user


NOBODY = "can't log in to deeplearning-master: its address belongs to no running instance"


def test_a_head_that_is_ready_before_its_address_is_awaited(monkeypatch):
    tries = []

    def refuse_twice(remote):
        tries.append(remote)
        if len(tries) < 3:
            raise NotListening(NOBODY)

    monkeypatch.setattr(Remote, "connect", refuse_twice)
    monkeypatch.setattr(bring_up, "_LOGIN_RETRIES_S", (0.0, 0.0, 0.0))
    _, notes = up(FakeCloud())
    assert len(tries) == 3
    assert notes == [f"waiting for the head to accept ssh: {NOBODY}"]


def test_the_key_that_was_made_is_the_key_that_is_sent():
    cloud = FakeCloud()
    up(cloud)
    assert cloud.describe_stack("demo").parameters == {"SshPublicKey": store.public_key("demo")}


def test_a_second_up_changes_nothing():
    cloud = FakeCloud()
    up(cloud)
    result, _ = up(cloud)
    assert result.already
    assert cloud.made == 1


def test_up_with_other_settings_says_which():
    cloud = FakeCloud()
    up(cloud)
    with pytest.raises(ClusterError, match=r"other settings: nodes: 2 → 3"):
        up(cloud, nodes=3)


def test_up_after_scale_agrees_with_the_old_number_and_with_the_new_one():
    cloud = FakeCloud()
    up(cloud)
    cloud.roster = roster(5)
    for nodes in (2, 5):
        result, _ = up(cloud, nodes=nodes)
        assert (result.already, result.roster.requested) == (True, 5)
    with pytest.raises(ClusterError, match=r"other settings: nodes: 5 → 3") as caught:
        up(cloud, nodes=3)
    assert "`phalanx scale 3` to change the number of nodes" in caught.value.hint


GROUP = StackChange("Modify", "HeadGroup", "AWS::AutoScaling::AutoScalingGroup", "Conditional")
TABLE = StackChange("Remove", "RosterTable", "AWS::DynamoDB::Table")
NETWORK = StackChange("Modify", "Vpc", "AWS::EC2::VPC", "True")
MAIL = StackChange("Modify", "MailSubscription", "AWS::SNS::Subscription", "True")


def changed(cloud, approve=lambda proposal: None, **values):
    making = BringUp(cloud, spec(**values), approve)
    list(making.steps())
    return making.result


def test_a_changed_file_is_shown_and_then_executed():
    cloud, shown = FakeCloud(changes=[GROUP, MAIL]), []
    up(cloud)
    cloud.outdated_now = [cloud.roster.nodes[1].instance_id]
    result = changed(cloud, shown.append, type="c5.xlarge", idle_s=1800)
    assert shown == [Proposal("demo", {"type": ("c5.large", "c5.xlarge"), "idle_s": (None, 1800)}, (GROUP, MAIL))]
    assert (result.already, list(result.changed), result.outdated) == (
        True,
        ["type", "idle_s"],
        ("deeplearning-worker2",),
    )
    assert cloud.reviewed == [({}, ["SshPublicKey"])]
    assert Cluster.load("demo").spec["type"] == "c5.xlarge"
    assert changed(cloud, shown.append, type="c5.xlarge", idle_s=1800).changed == {}


def test_a_role_that_would_outlive_an_update_which_no_longer_wants_it_is_deleted():
    gone = StackChange("Remove", "RemovalRole", "AWS::IAM::Role")
    cloud = FakeCloud(changes=[gone], script=[event(0, "RemovalRole", "CREATE_COMPLETE", "AWS::IAM::Role"), *READY])
    up(cloud, down_after_s=7200)
    changed(cloud, lambda proposal: None, down_after_s=None)
    assert cloud.deleted_roles == ["physical-RemovalRole"]


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({"type": "c5.xlarge"}, True),
        ({"idle_s": 1800}, True),
        ({"image": "amazon-linux-2023"}, False),
        ({"type": "c6g.large"}, False),
        ({"type": "g5.xlarge"}, False),
    ],
)
def test_an_update_keeps_the_image_of_the_nodes_unless_the_file_wants_another(monkeypatch, values, kept):
    """A path of Systems Manager may name a newer image by now: nodes of both would be in one cluster."""
    cloud, plans = FakeCloud(changes=[GROUP]), []
    up(cloud)
    (stack,) = cloud.stacks.values()
    parameters = {**stack.state.parameters, "Image": "/aws/service/x", "RootDevice": "/dev/xvdz"}
    stack.state = replace(stack.state, parameters=parameters, resolved={"Image": "ami-0123456789abcdef0"})
    sizes = {"c6g.large": {"architecture": "arm64"}, "g5.xlarge": {"gpus": 1}}.get(values.get("type", ""), {})
    facts = cloud.facts
    monkeypatch.setattr(cloud, "facts", lambda spec, key: replace(facts(spec, key), **sizes))
    monkeypatch.setattr(template, "request", lambda plan: plans.append(plan) or ("{}", {}))
    changed(cloud, **values)
    (plan,) = plans
    assert (plan.image_parameter == "ami-0123456789abcdef0") == kept
    assert (plan.root_device == "/dev/xvdz") == kept


def test_an_up_deletes_what_an_interrupted_review_has_left():
    cloud = FakeCloud()
    up(cloud)
    assert cloud.reviews_forgotten == []
    up(cloud)
    assert cloud.reviews_forgotten == [cloud.describe_stack("demo").stack_id]


def test_what_is_not_approved_is_not_done():
    def refuse(proposal):
        raise KeyboardInterrupt

    cloud = FakeCloud(changes=[GROUP])
    up(cloud)
    with pytest.raises(KeyboardInterrupt):
        changed(cloud, refuse, type="c5.xlarge")
    assert cloud.forgotten == ["changes"]
    assert cloud.describe_stack("demo").status == "CREATE_COMPLETE"
    assert Cluster.load("demo").spec["type"] == "c5.large"


@pytest.mark.parametrize(
    ("changes", "values", "reason"),
    [
        ([GROUP], {"shared": "/data"}, "other settings: shared: /efs → /data"),
        ([GROUP], {"storage": "head"}, "other settings: storage: None → head"),
        ([GROUP], {"boot": "true"}, "other settings: boot: None → true"),
        ([GROUP], {"zones": ["us-east-1c"]}, "other settings: zones: None → "),
        ([GROUP, NETWORK], {"placement": "cluster"}, "placement: None → cluster would replace Vpc"),
        ([GROUP, TABLE], {"type": "c5.xlarge"}, "type: c5.large → c5.xlarge would remove RosterTable"),
    ],
)
def test_what_can_not_change_in_place_is_refused_before_anybody_is_asked(changes, values, reason):
    cloud, shown = FakeCloud(changes=changes), []
    up(cloud)
    with pytest.raises(ClusterError, match=reason) as caught:
        changed(cloud, shown.append, **values)
    assert shown == [] and "`phalanx down`, then `phalanx up`" in caught.value.hint
    assert cloud.describe_stack("demo").status == "CREATE_COMPLETE"


def test_only_the_number_of_nodes_takes_no_update_of_the_stack():
    cloud, shown = FakeCloud(changes=[GROUP]), []
    up(cloud)
    result = changed(cloud, shown.append, nodes=3)
    assert shown == [Proposal("demo", {"nodes": (2, 3)})]
    assert result.resize == 3 and cloud.reviewed == []
    assert Cluster.load("demo").spec["nodes"] == 2, "until the cluster has them"


def test_a_type_with_gpus_brings_the_lease_that_it_has_by_default():
    cloud = FakeCloud(changes=[GROUP], name="aws")
    for kind in ("c5.large", "c5.xlarge", "g5.xlarge"):
        assert cloud.ends == []
        wanted = spec(cloud="aws", ssh_from="203.0.113.0/24", type=kind)
        list(BringUp(cloud, wanted, lambda proposal: None).steps())
        cloud.running_now = Running(nodes=2, stopped=False, end_s=None)
    (end,) = cloud.ends
    assert end - time.time() == pytest.approx(24 * 3600, abs=60)


def test_settings_of_the_next_creation_are_taken_as_they_are():
    cloud = FakeCloud(changes=[GROUP])
    up(cloud)
    assert changed(cloud, None, min=2, keep="no").changed == {}
    assert Cluster.load("demo").spec["min"] == 2


def test_an_agent_of_another_version_is_not_mixed_with_the_head_s():
    cloud = FakeCloud(changes=[GROUP])
    up(cloud)
    (stack,) = cloud.stacks.values()
    stack.state = replace(stack.state, outputs={**stack.state.outputs, "AgentVersion": "0.1+1234"})
    with pytest.raises(ClusterError, match=r"has the agent of phalanx 0\.1\+1234"):
        changed(cloud, type="c5.xlarge")
    assert cloud.reviewed == []


def test_a_setting_that_an_earlier_version_did_not_have_is_a_change():
    cloud, shown = FakeCloud(changes=[GROUP]), []
    up(cloud)
    cluster = Cluster.load("demo")
    replace(cluster, spec={key: cluster.spec[key] for key in cluster.spec if key not in ("idle_s", "tags")}).save()
    changed(cloud, shown.append, idle_s=1800)
    assert shown == [Proposal("demo", {"idle_s": (None, 1800)}, (GROUP,))]


def test_what_the_parameters_of_an_adopted_stack_do_not_show_is_not_compared():
    cloud = FakeCloud(changes=[GROUP])
    up(cloud)
    cluster = Cluster.load("demo")
    replace(cluster, spec={key: cluster.spec[key] for key in ("name", "cloud", "region", "type", "nodes")}).save()
    assert changed(cloud, None, idle_s=1800).changed == {}


def test_an_interrupted_update_is_followed_by_the_next_up():
    cloud = FakeCloud(changes=[GROUP])
    up(cloud)
    steps = BringUp(cloud, spec(type="c5.xlarge"), lambda proposal: None).steps()
    next(steps)
    steps.close()
    assert cloud.describe_stack("demo").updating
    cloud.changes = []
    result = changed(cloud, type="c5.xlarge")
    assert list(result.changed) == ["type"]
    assert Cluster.load("demo").spec["type"] == "c5.xlarge"


def test_a_failed_update_says_why_and_that_everything_is_as_before():
    cloud = FakeCloud(changes=[GROUP])
    up(cloud)
    cloud.update_script = [
        event(11, "demo", "UPDATE_IN_PROGRESS", STACK),
        event(12, "HeadGroup", "UPDATE_FAILED", "AWS::AutoScaling::AutoScalingGroup", "no such type"),
        event(13, "demo", "UPDATE_ROLLBACK_IN_PROGRESS", STACK),
        event(14, "demo", "UPDATE_ROLLBACK_COMPLETE", STACK),
    ]
    with pytest.raises(StackFailed, match=r"was not updated: HeadGroup .*: no such type") as caught:
        changed(cloud, type="c5.xlarge")
    assert "as it was before" in caught.value.hint
    assert Cluster.load("demo").spec["type"] == "c5.large"


def test_a_killed_up_is_picked_up_by_the_next():
    cloud = FakeCloud()
    killed = BringUp(cloud, spec()).steps()
    next(killed)
    killed.close()
    assert not Cluster.load("demo").ready
    result, notes = up(cloud)
    assert cloud.made == 1
    assert "following it" in notes[0]
    assert result.cluster.ready


def test_of_two_ups_at_once_the_refused_one_follows_the_other():
    class Overtaken(FakeCloud):
        def create_stack(self, name, template, parameters, tags=None):
            super().create_stack(name, template, parameters, tags)
            raise CloudError("AlreadyExistsException")

    result, _ = up(Overtaken())
    assert result.cluster.ready


def test_a_stack_of_somebody_else_is_not_touched():
    cloud = FakeCloud()
    cloud.put("demo", "CREATE_COMPLETE", ours=False)
    with pytest.raises(CloudError, match=r"in use by a stack that phalanx did not make"):
        up(cloud)
    assert cloud.describe_stack("demo").status == "CREATE_COMPLETE"


def test_a_cluster_of_another_machine_can_t_be_entered():
    cloud = FakeCloud()
    cloud.put("demo", "CREATE_COMPLETE", parameters={"SshPublicKey": "ssh-ed25519 AAAA other"})
    with pytest.raises(ClusterError, match="another machine's key"):
        up(cloud)


@pytest.mark.parametrize("status", ["ROLLBACK_COMPLETE", "CREATE_FAILED", "DELETE_FAILED", "ROLLBACK_IN_PROGRESS"])
def test_remains_of_a_failed_attempt_are_removed_first(status):
    cloud = FakeCloud()
    cloud.put("demo", status, [event(1, "demo", "ROLLBACK_COMPLETE", STACK)])
    result, notes = up(cloud)
    assert result.cluster.ready
    assert "removing its remains first" in notes[-1]


def test_a_stack_whose_update_could_not_be_undone_is_left_alone():
    cloud = FakeCloud()
    cloud.put("demo", "UPDATE_ROLLBACK_FAILED")
    with pytest.raises(CloudError, match=r"UPDATE_ROLLBACK_FAILED, and `up` can't continue") as refused:
        up(cloud)
    assert "continue-update-rollback --stack-name demo" in refused.value.hint


def test_a_failure_shows_the_reason_keeps_the_logs_and_frees_the_name(state):
    logs = {"10.0.0.5": "line 1\nfalse: exit 1", "10.0.0.6": "fine", "2026/11/[$LATEST]1": "START"}
    cloud = FakeCloud(script=list(HEAD_FAILED), logs=logs)
    with pytest.raises(StackFailed) as failure:
        up(cloud)
    assert "boot script failed: `false` ended with 1" in failure.value.message
    assert "false: exit 1" in failure.value.message
    assert "nothing is left" in failure.value.hint
    assert "START" not in failure.value.message
    assert (state / "clusters/demo/boot-logs/10.0.0.5.log").read_text() == "line 1\nfalse: exit 1\n"
    assert len(list((state / "clusters/demo/boot-logs").glob("*.log"))) == 3
    assert cloud.describe_stack("demo") is None
    assert store.known() == []


def test_a_refused_creation_leaves_no_record():
    with pytest.raises(CloudError, match="not authorized"):
        up(FakeCloud(refuse_create=CloudError("not authorized")))
    assert store.known() == []


def test_the_reason_of_a_failure_is_shown_even_when_its_remains_can_t_be_deleted(monkeypatch):
    cloud = FakeCloud(script=list(HEAD_FAILED))

    def refuse(stack_id):
        raise CloudError("DeleteStack was refused", "Request a policy.")

    monkeypatch.setattr(cloud, "delete_stack", refuse)
    with pytest.raises(StackFailed, match=r"`false` ended with 1(.|\n)*could be deleted: DeleteStack was refused"):
        up(cloud)
    assert store.known() == ["demo"]


def test_a_changed_lease_of_a_running_cluster_counts_from_now():
    cloud = FakeCloud()
    up(cloud)
    cloud.running_now = Running(nodes=2, stopped=False, end_s=None)
    result, notes = up(cloud, lease_s=7200)
    assert result.already
    assert cloud.ends == [pytest.approx(time.time() + 7200, abs=60)]
    assert notes[0].startswith("the lease or the budget has changed: all nodes stop 20")
    assert up(cloud, lease_s=7200)[1] == [] and len(cloud.ends) == 1
    assert up(cloud, lease_s=0)[1] == ["the lease or the budget has changed: all nodes stop never"]
    assert cloud.ends[1:] == [None]


def deleted_at(step, cloud):
    """Another `down` deletes the stack once `up` has shown so many steps."""
    making = BringUp(cloud, spec())
    steps = making.steps()
    for _ in range(step):
        next(steps)
    cloud.delete_stack("arn:stack/demo/1")
    list(steps)


def test_a_creation_that_another_command_deletes_is_reported_in_a_sentence_and_can_be_repeated():
    cloud = FakeCloud()
    with pytest.raises(
        ClusterError, match=r"^another command has deleted cluster demo, such as `phalanx down`"
    ) as failed:
        deleted_at(3, cloud)
    assert failed.value.hint == "`phalanx up` creates it again."
    result, _ = up(cloud)
    assert not result.already


def test_a_cluster_that_another_command_deletes_is_not_reported_as_ready(monkeypatch):
    """The other command has removed the record that ssh reads, too."""
    cloud = FakeCloud()

    def connect(remote):
        cloud.stacks.clear()
        raise ConnectionLost("can't log in to deeplearning-worker1: Can't open user config file", "")

    monkeypatch.setattr(Remote, "connect", connect)
    with pytest.raises(ClusterError, match="another command has deleted cluster demo"):
        up(cloud)


def test_a_cluster_that_is_being_deleted_while_up_starts_its_nodes_is_that(monkeypatch):
    cloud = FakeCloud()
    up(cloud)
    cloud.running_now = Running(2, True, None)

    def refuse(*_):
        stack = next(iter(cloud.stacks.values()))
        stack.state = replace(stack.state, status="DELETE_IN_PROGRESS")
        raise CloudError("the roster of cluster demo is empty", "Run `phalanx down`, then `phalanx up`.")

    monkeypatch.setattr(cloud, "start_nodes", refuse, raising=False)
    with pytest.raises(ClusterError, match="another command is deleting cluster demo") as failed:
        up(cloud)
    assert failed.value.hint == "When it has ended, `phalanx up` creates it again."


def test_an_up_whose_local_cloud_another_command_stops_says_so(monkeypatch):
    cloud = FakeCloud()

    def gone(*_):
        raise NotRunning("the local cloud is not running", "")

    def stopped(*_):
        cloud.describe_stack = gone
        gone()

    monkeypatch.setattr(cloud, "create_stack", stopped)
    with pytest.raises(ClusterError, match="another command has stopped the local cloud, such as `phalanx down`"):
        up(cloud)
