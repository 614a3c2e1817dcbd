"""`up` on a changed file, with a cloud in memory: what it shows, asks, executes and refuses."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace

import pytest
from error_codes import raises_code
from fake_cloud import READY, STACK, FakeAws, demo, event, up

from phalanx import template
from phalanx.aws.model import Running, StackChange
from phalanx.cluster.bring_up import BringUp, Note
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.update import Proposal
from phalanx.errors import CloudError, ClusterError
from phalanx.spec.spec import KEYS
from phalanx.spec.spec_key import Needs
from phalanx.spec.spec_load import load

pytestmark = pytest.mark.usefixtures("in_memory")


GROUP = StackChange("Modify", "HeadGroup", "AWS::AutoScaling::AutoScalingGroup", "Conditional")
TABLE = StackChange("Remove", "RosterTable", "AWS::DynamoDB::Table")
NETWORK = StackChange("Modify", "Vpc", "AWS::EC2::VPC", "True")
MAIL = StackChange("Modify", "MailSubscription", "AWS::SNS::Subscription", "True")


def changed(cloud, approve=lambda proposal: None, /, **values):
    making = BringUp(cloud, demo(**values), approve)
    list(making.steps())
    return making.result


def test_a_changed_file_is_shown_and_then_executed():
    cloud, shown = FakeAws(changes=[GROUP, MAIL]), []
    up(cloud)
    cloud.outdated_now = [cloud.roster.nodes[1].instance_id]
    result = changed(cloud, shown.append, type="c5.xlarge", idle_s=1800)
    assert shown == [Proposal("demo", {"type": ("c5.large", "c5.xlarge"), "idle_s": (None, 1800)}, (GROUP, MAIL))]
    assert (result.already, list(result.changed), result.outdated) == (
        True,
        ["type", "idle_s"],
        ("deeplearning-worker2",),
    )
    assert cloud.reviewed == [({}, ["Workers", "SshPublicKey"])]
    assert Cluster.load("demo").spec["type"] == "c5.xlarge"
    assert changed(cloud, shown.append, type="c5.xlarge", idle_s=1800).changed == {}


def test_a_document_that_no_request_takes_is_compared_from_the_bucket(monkeypatch):
    cloud = FakeAws(changes=[GROUP])
    up(cloud)
    document = json.dumps("x" * 60_000)
    monkeypatch.setattr(template, "request", lambda plan: (document, plan.parameters()))
    making = BringUp(cloud, demo(type="c5.xlarge", bucket="documents"), lambda proposal: None)
    notes = [step.text for step in making.steps() if isinstance(step, Note)]
    ((url, text),) = cloud.uploads.items()
    assert re.fullmatch(r"s3://documents/phalanx/demo-[0-9a-f]{32}\.json", url)
    assert (cloud.sent[-1], text, cloud.objects) == (document, document, {})
    assert any(f"it goes through {url}, which is deleted afterwards" in note for note in notes)
    assert making.result and [*making.result.changed] == ["type"]


def test_another_bucket_is_no_change_of_the_cluster():
    cloud = FakeAws(changes=[GROUP])
    up(cloud)
    assert changed(cloud, pytest.fail, bucket="documents").changed == {}


def test_an_update_that_cloudformation_refuses_leaves_nothing_in_the_bucket(monkeypatch):
    def refuse(**_arguments):
        assert cloud.objects
        refused = CloudError("cloudformation:CreateChangeSet was refused")
        refused.was_refused = True
        raise refused

    cloud = FakeAws(changes=[GROUP])
    up(cloud)
    monkeypatch.setattr(template, "request", lambda plan: ("x" * 60_000, plan.parameters()))
    monkeypatch.setattr(cloud, "create_change_set", refuse)
    with pytest.raises(CloudError, match="was refused"):
        changed(cloud, type="c5.xlarge", bucket="documents")
    assert cloud.uploads
    assert cloud.objects == {}


def test_a_role_that_would_outlive_an_update_which_no_longer_wants_it_is_deleted():
    gone = StackChange("Remove", "RemovalRole", "AWS::IAM::Role")
    cloud = FakeAws(changes=[gone], script=[event(0, "RemovalRole", "CREATE_COMPLETE", "AWS::IAM::Role"), *READY])
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
    cloud, plans = FakeAws(changes=[GROUP]), []
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


@pytest.mark.parametrize(("now", "is_newer"), [("ami-0123456789abcdef0", False), ("ami-0fedcba9876543210", True)])
def test_a_newer_image_is_for_whoever_asks_for_it(monkeypatch, now, is_newer):
    cloud, plans, shown = FakeAws(changes=[GROUP]), [], []
    up(cloud)
    (stack,) = cloud.stacks.values()
    parameters = {**stack.state.parameters, "Image": "/aws/service/x", "RootDevice": "/dev/xvdz"}
    stack.state = replace(stack.state, parameters=parameters, resolved={"Image": "ami-0123456789abcdef0"})
    cloud.get_parameter = lambda Name: {"Parameter": {"Value": now}}
    monkeypatch.setattr(template, "request", lambda plan: plans.append(plan) or ("{}", {}))
    making = BringUp(cloud, demo(), shown.append, new_image=True)
    notes = [str(step) for step in making.steps() if isinstance(step, Note)]
    if is_newer:
        assert [one.settings for one in shown] == [{"image": ("ami-0123456789abcdef0", now)}]
        assert not plans[0].image_parameter.startswith("ami-")
    else:
        assert shown == plans == []
        assert any("ami-0123456789abcdef0" in one for one in notes)
    assert Cluster.load("demo").spec["image"] is None


def test_an_up_deletes_what_an_interrupted_review_has_left():
    cloud = FakeAws()
    up(cloud)
    assert cloud.reviews_forgotten == []
    up(cloud)
    assert cloud.reviews_forgotten == [cloud.state("demo").stack_id]


def test_what_is_not_approved_is_not_done():
    def refuse(proposal):
        raise KeyboardInterrupt

    cloud = FakeAws(changes=[GROUP])
    up(cloud)
    with pytest.raises(KeyboardInterrupt):
        changed(cloud, refuse, type="c5.xlarge")
    assert cloud.forgotten == ["changes"]
    assert cloud.state("demo").status == "CREATE_COMPLETE"
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
    cloud, shown = FakeAws(changes=changes), []
    up(cloud)
    with pytest.raises(ClusterError, match=reason) as caught:
        changed(cloud, shown.append, **values)
    assert shown == [] and "`phalanx down`, then `phalanx up`" in caught.value.hint
    assert cloud.state("demo").status == "CREATE_COMPLETE"


def example_of(key, directory):
    """Return the field that a file with the key's example has, beside name and nodes."""
    path = directory / "phalanx.yaml"
    path.write_text(f"name: demo\nnodes: 2\n{key.line(key.example)}\n")
    return {key.field: getattr(load(path), key.field)}


@pytest.mark.parametrize("name", [name for name, key in KEYS.items() if key.change.needs is Needs.ANOTHER_CLUSTER])
def test_a_key_that_needs_another_cluster_is_refused(name, tmp_path):
    others: dict[str, object] = {"region": "eu-central-1", "cloud": "aws", "shared": "/data", "storage": "head"}
    values = {name: others[name]} if name in others else example_of(KEYS[name], tmp_path)
    values |= {"ssh_from": "203.0.113.7/32"} if name == "cloud" else {}
    cloud = FakeAws(changes=[GROUP])
    up(cloud)
    with raises_code("settings-differ"):
        changed(cloud, pytest.fail, **values)
    assert cloud.reviewed == []


@pytest.mark.parametrize("name", ["min", "keep", "lease", "budget", "bucket", "job"])
def test_a_key_that_counts_later_needs_no_update(name, tmp_path):
    assert KEYS[name].change.needs is Needs.NOTHING
    cloud = FakeAws(changes=[GROUP])
    up(cloud)
    made = changed(cloud, pytest.fail, **example_of(KEYS[name], tmp_path)).changed
    assert made.keys() <= {"lease_s", "budget"}, "a new end of the nodes is no update"


def test_only_the_number_of_nodes_takes_no_update_of_the_stack():
    cloud, shown = FakeAws(changes=[GROUP]), []
    up(cloud)
    result = changed(cloud, shown.append, nodes=3)
    assert shown == [Proposal("demo", {"nodes": (2, 3)})]
    assert result.resize == 3 and cloud.reviewed == []
    assert Cluster.load("demo").spec["nodes"] == 2, "until the cluster has them"


def test_a_type_with_gpus_brings_the_lease_that_it_has_by_default():
    cloud = FakeAws(changes=[GROUP], name="aws")
    for kind in ("c5.large", "c5.xlarge", "g5.xlarge"):
        assert cloud.ends == []
        wanted = demo(cloud="aws", ssh_from="203.0.113.0/24", type=kind, image="dlami-base")
        list(BringUp(cloud, wanted, lambda proposal: None).steps())
        cloud.running_now = Running(nodes=2, stopped=False, end_s=None)
    (end,) = cloud.ends
    assert end - time.time() == pytest.approx(24 * 3600, abs=60)


def test_settings_of_the_next_creation_are_taken_as_they_are():
    cloud = FakeAws(changes=[GROUP])
    up(cloud)
    assert changed(cloud, None, min=2, keep="no").changed == {}
    assert Cluster.load("demo").spec["min"] == 2


def test_an_agent_of_another_version_is_not_mixed_with_the_head_s():
    cloud = FakeAws(changes=[GROUP])
    up(cloud)
    (stack,) = cloud.stacks.values()
    stack.state = replace(stack.state, outputs={**stack.state.outputs, "AgentVersion": "0.1+1234"})
    with raises_code("other-version", "0.1+1234"):
        changed(cloud, type="c5.xlarge")
    assert cloud.reviewed == []


def test_what_the_parameters_of_an_adopted_stack_do_not_show_is_not_compared():
    cloud = FakeAws(changes=[GROUP])
    up(cloud)
    cluster = Cluster.load("demo")
    replace(cluster, spec={key: cluster.spec[key] for key in ("name", "cloud", "region", "type", "nodes")}).save()
    assert changed(cloud, None, idle_s=1800).changed == {}


def test_an_interrupted_update_is_followed_by_the_next_up():
    cloud = FakeAws(changes=[GROUP])
    up(cloud)
    steps = BringUp(cloud, demo(type="c5.xlarge"), lambda proposal: None).steps()
    next(steps)
    steps.close()
    assert cloud.state("demo").updating
    cloud.changes = []
    result = changed(cloud, type="c5.xlarge")
    assert list(result.changed) == ["type"]
    assert Cluster.load("demo").spec["type"] == "c5.xlarge"


def test_a_failed_update_says_why_and_that_everything_is_as_before():
    cloud = FakeAws(changes=[GROUP])
    up(cloud)
    cloud.update_script = [
        event(11, "demo", "UPDATE_IN_PROGRESS", STACK),
        event(12, "HeadGroup", "UPDATE_FAILED", "AWS::AutoScaling::AutoScalingGroup", "no such type"),
        event(13, "demo", "UPDATE_ROLLBACK_IN_PROGRESS", STACK),
        event(14, "demo", "UPDATE_ROLLBACK_COMPLETE", STACK),
    ]
    with raises_code("update-failed", "HeadGroup", "no such type") as caught:
        changed(cloud, type="c5.xlarge")
    assert "as it was before" in caught.value.hint
    assert Cluster.load("demo").spec["type"] == "c5.large"
