"""Elastic Fabric Adapters: which interfaces a node gets on its type's cards, and what is refused."""

import json
from dataclasses import replace

import pytest
from clusters import GPU_FACTS, aws_spec, plan
from error_codes import raises_code
from plans import resources

from phalanx.errors import SpecError
from phalanx.plan.network_cards import cards, layout
from phalanx.plan.plan import HeadFacts, make_plan
from phalanx.plan.plan_text import explain
from phalanx.template import synthesize

HEAD = {"type": "m5.large"}
HEAD_FACTS = HeadFacts(2, 8, "x86_64")


def described(number: int, most: int, *, first: tuple[str, ...] = ("interface", "efa", "efa-only")) -> dict:
    """Return a type as EC2 describes it, with this many cards that take `most` interfaces each."""
    kinds = [first, *[("interface", "efa", "efa-only")] * (number - 1)]
    found = [
        {"NetworkCardIndex": index, "MaximumNetworkInterfaces": most, "InterfaceTypes": list(kind)}
        for index, kind in enumerate(kinds)
    ]
    return {"NetworkInfo": {"EfaSupported": True, "NetworkCards": found}}


@pytest.mark.parametrize(
    ("name", "type_", "expected"),
    [
        ("a single card keeps its address and its way out", described(1, 8), [(0, 0, "efa")]),
        ("p4d", described(4, 15), [(0, 0, "interface"), (0, 1, "efa-only"), *((n, 0, "efa-only") for n in (1, 2, 3))]),
        ("hpc6id has one interface for each card", described(2, 1), [(0, 0, "efa"), (1, 0, "efa-only")]),
        (
            "p6-b300's first card takes no EFA",
            described(3, 4, first=("interface",)),
            [(0, 0, "interface"), (1, 0, "efa-only"), (2, 0, "efa-only")],
        ),
    ],
)
def test_interfaces_are_laid_out_from_the_cards(name, type_, expected):
    assert list(layout(cards(type_))) == expected, name


def test_a_type_without_efa_has_no_such_cards():
    assert cards({"NetworkInfo": {"EfaSupported": False, "NetworkCards": []}}) == cards({}) == ()


def test_p5_has_32_adapters_and_one_address_for_each_worker_and_a_plain_head():
    facts = replace(GPU_FACTS, cards=cards(described(32, 2)), head=HEAD_FACTS)
    made = make_plan(aws_spec(type="p5.48xlarge", efa="yes", head=HEAD), facts)
    head, worker = resources(json.loads(synthesize(made)), "AWS::EC2::LaunchTemplate").values()
    found = worker["LaunchTemplateData"]["NetworkInterfaces"]
    assert [one["InterfaceType"] for one in found] == ["interface", *["efa-only"] * 32]
    assert {json.dumps(one["Groups"]) for one in found} == {'[{"Ref": "NodeSecurityGroup"}]'}
    assert "SecurityGroupIds" not in worker["LaunchTemplateData"], "EC2 refuses both (docs/aws-behaviour.md 2.4)"
    assert "NetworkInterfaces" not in head["LaunchTemplateData"]
    assert head["LaunchTemplateData"]["InstanceType"] == "m5.large"
    assert [setting in head["LaunchTemplateData"]["UserData"]["Fn::Base64"]["Fn::Sub"][0] for setting in ROLE] == [
        True,
        True,
    ]
    assert "EFA               32 adapters on each node that trains" in explain(made)


ROLE = ("#slots=-1\n", "#efa=\n")


@pytest.mark.parametrize(
    ("fields", "found", "message"),
    [
        ({}, (), "efa: p5.48xlarge has no Elastic Fabric Adapter"),
        ({}, cards(described(4, 15)), "would have 4 network cards, and EC2 gives no public address to an instance"),
    ],
)
def test_adapters_that_are_not_to_be_had_are_refused(fields, found, message):
    with pytest.raises(SpecError, match=message):
        make_plan(aws_spec(type="p5.48xlarge", efa="yes", **fields), replace(GPU_FACTS, cards=found))


def test_a_cluster_placement_group_holds_the_nodes_that_train():
    templates = resources(json.loads(synthesize(plan(placement="cluster"))), "AWS::EC2::LaunchTemplate").values()
    assert [one["LaunchTemplateData"]["Placement"] for one in templates] == [
        {"GroupName": {"Ref": "PlacementGroup"}}
    ] * 2
    facts = replace(GPU_FACTS, cloud="local", stand_ins=0, head=HEAD_FACTS)
    document = json.loads(synthesize(plan(facts, placement="mine", head=HEAD)))
    head, worker = resources(document, "AWS::EC2::LaunchTemplate").values()
    assert worker["LaunchTemplateData"]["Placement"] == {"GroupName": "mine"}
    assert "Placement" not in head["LaunchTemplateData"]
    assert not resources(document, "AWS::EC2::PlacementGroup")


def test_a_type_that_can_t_be_in_a_cluster_placement_group_is_refused():
    burstable = replace(GPU_FACTS, strategies=("partition", "spread"))
    with raises_code("placement-unsuited", "t3.large"):
        make_plan(aws_spec(type="t3.large", placement="cluster"), burstable)


def test_a_head_for_another_processor_is_refused():
    with raises_code("other-architecture", "m7g.large", "arm64", "c5.large", "x86_64"):
        plan(replace(GPU_FACTS, head=replace(HEAD_FACTS, architecture="arm64")), head={"type": "m7g.large"})
