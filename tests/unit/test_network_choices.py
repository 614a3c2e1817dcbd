"""`network`: the blocks of a new VPC, and what is refused."""

import json
from dataclasses import replace

import pytest
from clusters import FACTS, GPU_FACTS, aws_spec, plan
from plans import resources

from phalanx.errors import SpecError
from phalanx.plan import subnets
from phalanx.plan.network_cards import Card
from phalanx.plan.plan import HeadFacts, make_plan
from phalanx.plan.plan_text import explain
from phalanx.template import fleet, synthesize


@pytest.mark.parametrize(
    ("vpc", "public", "private", "places"),
    [
        (subnets.DEFAULT, "10.0.0.0/24", "10.0.16.0/20", 4090),
        ("10.20.0.0/17", "10.20.0.0/24", "10.20.16.0/20", 4090),
        ("172.16.0.0/20", "172.16.0.0/24", "172.16.8.0/21", 2042),
        ("192.168.4.0/24", "192.168.4.0/25", "192.168.4.128/25", 122),
        ("100.64.0.0/27", "100.64.0.0/28", "100.64.0.16/28", 10),
    ],
)
def test_a_vpc_is_cut_into_two_subnets(vpc, public, private, places):
    assert subnets.new(vpc) == subnets.NewNetwork(vpc, public, private)
    assert subnets.new(vpc).places == places


def test_the_document_and_the_agents_have_the_blocks_of_the_spec():
    chosen = plan(network={"cidr": "172.16.0.0/20"})
    document = json.loads(synthesize(chosen))
    found = resources(document, "AWS::EC2::Subnet")
    assert resources(document, "AWS::EC2::VPC")["Vpc"]["CidrBlock"] == "172.16.0.0/20"
    assert [found[name]["CidrBlock"] for name in ("PublicSubnet", "PrivateSubnet")] == [
        "172.16.0.0/24",
        "172.16.8.0/21",
    ]
    assert {fleet.config(role, chosen)["networks"] for role in ("head", "worker")} == {"172.16.0.0/20"}
    assert any("a VPC (172.16.0.0/20) with" in line for line in explain(chosen))


@pytest.mark.parametrize(
    ("cidr", "message"),
    [
        ("10.20.0.0", "is not an IPv4 network"),
        ("fd00::/64", "is not an IPv4 network"),
        ("10.20.0.0/33", "is not an IPv4 network"),
        ("10.20.1.0/16", r"is an address inside a network; write 10\.20\.0\.0/16"),
        ("10.0.0.0/8", "must be from /16 to /27, is /8"),
        ("10.0.0.0/28", "must be from /16 to /27, is /28"),
        ("8.8.0.0/16", "has public addresses"),
        ("172.32.0.0/16", "has public addresses"),
        ("169.254.0.0/16", "has public addresses"),
    ],
)
def test_a_block_that_no_cluster_can_have_is_refused(cidr, message):
    with pytest.raises(SpecError, match=f"network: cidr .*{message}"):
        plan(network={"cidr": cidr})


def test_a_block_without_room_for_the_workers_is_refused_with_the_least_that_has():
    assert plan(nodes=11, network={"cidr": "10.9.0.0/27"})
    with pytest.raises(SpecError, match=r"10\.9\.0\.0/27 has 10 addresses for workers, and 11 workers need 11") as one:
        plan(nodes=12, network={"cidr": "10.9.0.0/27"})
    assert one.value.hint == "Write a network of /26 or larger."


def test_adapters_with_addresses_of_their_own_take_room():
    of_p4d = (Card(0, 15, "efa"), Card(1, 15, "efa"), Card(2, 15, "efa"), Card(3, 15, "efa"))
    facts = replace(GPU_FACTS, cards=of_p4d, head=HeadFacts(2, 8, "x86_64"))
    fields = {"type": "p4d.24xlarge", "efa": "yes", "head": {"type": "m5.large"}, "network": {"cidr": "10.9.0.0/26"}}
    assert make_plan(aws_spec(nodes=6, **fields), facts)
    with pytest.raises(SpecError, match="has 26 addresses for workers, and 6 workers need 30"):
        make_plan(aws_spec(nodes=7, **fields), facts)
    with pytest.raises(SpecError, match="At most 818 workers fit"):
        make_plan(aws_spec(nodes=1000, **{**fields, "network": None}), facts)
    assert make_plan(aws_spec(nodes=1000), replace(FACTS, cloud="aws"))
