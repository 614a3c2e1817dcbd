"""`up` without capacity in one place: it tries the next zone and the next type, and only for a shortage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from clusters import FACTS, plan
from fake_cloud import HEAD_FAILED, READY, FakeAws

from phalanx import state_files, template
from phalanx.cluster.bring_up import BringUp, Note
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.failed_creation import is_shortage
from phalanx.errors import NoCapacity, SpecError, StackFailed
from phalanx.plan.plan_text import explain
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_load import load

NONE_LEFT = (
    "We currently do not have sufficient p5.48xlarge capacity in the Availability Zone you requested (us-east-1a). Our "
    "system will be working on provisioning additional capacity. Launching EC2 instance failed."
)
QUOTA = "You have requested more vCPU capacity than your current vCPU limit of 8 allows for the instance bucket"
DENIED = "You are not authorized to perform this operation. with an explicit deny in a service control policy"


class Scarce(FakeAws):
    """A cloud whose first stacks fail for these reasons, and the next ones do not."""

    def __init__(self, *reasons: str) -> None:
        super().__init__()
        self.reasons = list(reasons)
        self.tried: list[tuple[str, str]] = []

    def facts(self, spec, ssh_public_key):
        zones = ("us-east-1a", "us-east-1b") if spec.type == "c5.large" else ("us-east-1b",)
        return replace(FACTS, zones=zones, ssh_public_key=ssh_public_key)

    def create_stack(self, StackName, TemplateBody, Parameters, **_):
        kind, zone = TemplateBody.split()
        self.tried.append((kind, zone))
        chosen = {"InstanceType": kind, "Zone": zone}
        parameters = [
            *Parameters,
            *({"ParameterKey": key, "ParameterValue": value} for key, value in chosen.items()),
        ]
        self.script = READY
        if self.reasons:
            first, second, failed, *rest = HEAD_FAILED
            said = f"WaitCondition received failed message: '{self.reasons.pop(0)}' for uniqueId: phalanx"
            self.script = [first, second, replace(failed, reason=said), *rest]
        return super().create_stack(StackName, parameters, TemplateBody=TemplateBody)


@pytest.fixture(autouse=True)
def document(in_memory, monkeypatch):
    monkeypatch.setattr(template, "request", lambda plan: (f"{plan.spec.type} {plan.zone}", plan.parameters()))


CHOICE = {"type": ["c5.large", "c5.xlarge"], "zones": ["us-east-1b", "us-east-1a"]}
PAIRS = [("c5.large", "us-east-1b"), ("c5.large", "us-east-1a"), ("c5.xlarge", "us-east-1b")]


def up(cloud, **fields) -> list[str]:
    making = BringUp(cloud, ClusterSpec(**{"name": "demo", "nodes": 2, **CHOICE, **fields}))
    notes = [step.text for step in making.steps() if isinstance(step, Note)]
    assert making.result is not None
    return notes


def test_the_next_zone_and_then_the_next_type_are_tried():
    cloud = Scarce(NONE_LEFT, NONE_LEFT)
    notes = up(cloud)
    assert cloud.tried == PAIRS
    assert notes == [
        f"no capacity for c5.large in us-east-1b: {NONE_LEFT}",
        "nothing of that attempt is left; trying c5.large in us-east-1a",
        f"no capacity for c5.large in us-east-1a: {NONE_LEFT}",
        "nothing of that attempt is left; trying c5.xlarge in us-east-1b",
    ]
    assert Cluster.load("demo").spec["type"] == "c5.xlarge"
    assert up(cloud) == [], "the same file is no change, and the record keeps the type that is there"
    assert Cluster.load("demo").spec["type"] == "c5.xlarge"


@pytest.mark.parametrize("interrupted", [1, 2])
def test_an_interrupted_creation_goes_on_with_the_pair_after_the_one_that_failed(interrupted):
    """The creation is interrupted while the stack of the first pair, or of the second, is being made."""
    cloud = Scarce(NONE_LEFT, NONE_LEFT)
    steps = BringUp(cloud, ClusterSpec(name="demo", nodes=2, **CHOICE)).steps()
    while len(cloud.tried) < interrupted:
        next(steps)
    steps.close()
    notes = up(cloud)
    assert cloud.tried == PAIRS
    assert notes[:2] == [
        "stack demo is being created already; following it",
        f"no capacity for {' in '.join(PAIRS[interrupted - 1])}: {NONE_LEFT}",
    ]
    assert Cluster.load("demo").spec["type"] == "c5.xlarge"


def test_when_all_are_tried_the_last_failure_is_the_result():
    cloud = Scarce(*[NONE_LEFT] * 3)
    with pytest.raises(NoCapacity, match="do not have sufficient"):
        up(cloud)
    assert cloud.tried == PAIRS
    assert state_files.known() == []


@pytest.mark.parametrize("reason", [QUOTA, DENIED, "the boot script failed"])
def test_a_denial_is_named_and_nothing_else_is_tried(reason):
    cloud = Scarce(reason)
    with pytest.raises(StackFailed, match=reason.split(".")[0]):
        up(cloud)
    assert cloud.tried == PAIRS[:1]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (NONE_LEFT, True),
        (f"1 of 4 nodes, at least 4 are needed: {NONE_LEFT}", True),
        ("1 of 4 nodes, at least 4 are needed: There is no Spot capacity available that matches your request.", True),
        (f"1 of 4 nodes, at least 4 are needed: {NONE_LEFT}; i-2: the boot script failed", False),
        (f"You must use a valid fully-formed launch template. {NONE_LEFT}", True),
        (QUOTA, False),
        ("Max spot instance count exceeded.", False),
        ("", False),
    ],
)
def test_only_a_lack_of_machines_is_a_shortage(failure, expected):
    assert is_shortage(failure) is expected


def test_a_list_of_types_is_read_and_shown(tmp_path):
    (tmp_path / "phalanx.yaml").write_text("name: demo\nnodes: 2\ntype: [c5.large, c5.xlarge]\n")
    spec = load(tmp_path / "phalanx.yaml")
    assert (spec.type, spec.other_types, spec.types) == ("c5.large", ("c5.xlarge",), ("c5.large", "c5.xlarge"))
    assert replace(spec, nodes=3).types == spec.types
    assert ClusterSpec(name="demo", nodes=2, type=["c5.large"]).types == ("c5.large",)
    shown = explain(plan(**{**CHOICE, "zones": ["us-east-1a", "us-east-1b"]}))
    assert "if there is none  the same in us-east-1b, then c5.xlarge" in shown


@pytest.mark.parametrize("types", [[], ["c5.large", "c5.large"], ["c5large"], [4]])
def test_a_wrong_list_of_types_is_refused(types):
    with pytest.raises(SpecError, match="type: "):
        ClusterSpec(name="demo", nodes=2, type=types)
