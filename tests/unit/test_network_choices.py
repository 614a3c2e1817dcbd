"""`network`: the blocks of a new VPC, the subnets of an existing one, and what is refused."""

import json
from dataclasses import replace

import pytest
from clusters import FACTS, GPU_FACTS, aws_spec, plan
from error_codes import each, raises_code
from plans import resources

from phalanx.errors import SpecError
from phalanx.plan import subnets
from phalanx.plan.existing_vpc import INTERNET, NAT, OTHER, ExistingVpc, Subnet
from phalanx.plan.network_cards import Card
from phalanx.plan.plan import Facts, HeadFacts, Plan, make_plan
from phalanx.plan.plan_text import explain
from phalanx.template import fleet, synthesize

HEAD = Subnet("subnet-0123456789abcdef0", "vpc-0123456789abcdef0", "us-east-1b", "10.1.0.0/28", 11, INTERNET)
WORKERS = replace(HEAD, subnet_id="subnet-0123456789abcdef1", cidr="10.1.1.0/28", way_out=NAT)
BOTH = {"head_subnet": HEAD.subnet_id, "worker_subnet": WORKERS.subnet_id}


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
    with raises_code("network-too-small", "10.9.0.0/27", "10 addresses", "11 workers need 11") as one:
        plan(nodes=12, network={"cidr": "10.9.0.0/27"})
    assert "/26" in one.value.hint


def test_adapters_with_addresses_of_their_own_take_room():
    of_p4d = (Card(0, 15, "efa"), Card(1, 15, "efa"), Card(2, 15, "efa"), Card(3, 15, "efa"))
    facts = replace(GPU_FACTS, cards=of_p4d, head=HeadFacts(2, 8, "x86_64"))
    fields = {"type": "p4d.24xlarge", "efa": "yes", "head": {"type": "m5.large"}, "network": {"cidr": "10.9.0.0/26"}}
    assert make_plan(aws_spec(nodes=6, **fields), facts)
    with raises_code("network-too-small", "26 addresses", "6 workers need 30"):
        make_plan(aws_spec(nodes=7, **fields), facts)
    with pytest.raises(SpecError, match="At most 818 workers fit"):
        make_plan(aws_spec(nodes=1000, **{**fields, "network": None}), facts)
    assert make_plan(aws_spec(nodes=1000), replace(FACTS, cloud="aws"))


def existing(
    public: Subnet = HEAD, workers: Subnet = WORKERS, *, dns: bool = True, facts: Facts = FACTS, **more
) -> Plan:
    """Return the plan for these subnets."""
    found = ExistingVpc(public.vpc, dns, dns, public, workers)
    return make_plan(aws_spec(**{"network": BOTH} | more), replace(facts, cloud="aws", vpc=found))


def test_nothing_of_the_network_is_made_in_an_existing_vpc():
    chosen = existing()
    document = json.loads(synthesize(chosen))
    kinds = {resource["Type"].removeprefix("AWS::EC2::") for resource in document["Resources"].values()}
    assert not kinds & {"VPC", "Subnet", "NatGateway", "InternetGateway", "Route", "RouteTable", "VPCEndpoint"}
    assert list(resources(document, "AWS::EC2::EIP")) == ["HeadAddress"]
    given = {name: parameter["Default"] for name, parameter in document["Parameters"].items() if "Default" in parameter}
    assert "Zone" not in given
    assert [given[name] for name in ("Vpc", "PublicSubnet", "PrivateSubnet", "Networks")] == [
        *(HEAD.vpc, HEAD.subnet_id, WORKERS.subnet_id),
        "10.1.0.0/28,10.1.1.0/28",
    ]
    assert chosen.zone == "us-east-1b"
    assert any(f"your {HEAD.vpc}: {HEAD.subnet_id} (head)" in line for line in explain(chosen))
    assert chosen.cost_usd_per_hour == pytest.approx(4 * 0.085 + 0.005)


def test_nodes_in_a_public_subnet_have_a_public_address_whatever_it_does_by_itself():
    def asks(plan: Plan) -> list[bool]:
        found = resources(json.loads(synthesize(plan)), "AWS::EC2::LaunchTemplate").values()
        interfaces = [one["LaunchTemplateData"].get("NetworkInterfaces", [{}]) for one in found]
        return [one[0].get("AssociatePublicIpAddress", False) for one in interfaces]

    assert asks(existing()) == [True, False]
    assert asks(existing(HEAD, HEAD, network={"head_subnet": HEAD.subnet_id})) == [True, True]
    assert asks(plan()) == [False, False]


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ({"cidr": "10.1.0.0/16", **BOTH}, "has a cidr, which is for a new VPC, beside a subnet"),
        ({"worker_subnet": WORKERS.subnet_id}, "has a worker_subnet without a head_subnet"),
        ({"head_subnet": "subnet-1"}, "head_subnet must be the id of a subnet, is 'subnet-1'"),
    ],
)
def test_a_network_that_contradicts_itself_is_refused(network, message):
    with pytest.raises(SpecError, match=message):
        aws_spec(network=network)


def test_zones_beside_subnets_are_refused():
    with raises_code("conflicting-keys", "network: ", "`zones`"):
        aws_spec(network=BOTH, zones=["us-east-1b"])


def test_only_ec2_knows_a_subnet():
    with raises_code("cloud-not-asked"):
        make_plan(aws_spec(network=BOTH), replace(FACTS, cloud="aws"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dns": False}, r"vpc-\w+ has no DNS: .*\n.*has no DNS host names: set its attribute enableDnsHostnames"),
        ({"workers": replace(WORKERS, vpc="vpc-2")}, r"subnet-\w+ is in vpc-\w+, and subnet-\w+ is in vpc-2"),
        ({"workers": replace(WORKERS, zone="us-east-1a")}, r"is in us-east-1b, and subnet-\w+ is in us-east-1a"),
        (
            {"workers": replace(WORKERS, zone="us-east-1e"), "public": replace(HEAD, zone="us-east-1e")},
            r"is in us-east-1e, and c5\.large can be had in us-east-1a, us-east-1b",
        ),
        ({"public": replace(HEAD, way_out=NAT)}, "leads to a NAT gateway: the head needs one to an internet gateway"),
        ({"public": replace(HEAD, way_out="")}, "leads nowhere: the head needs one to an internet gateway"),
        ({"workers": replace(WORKERS, way_out="")}, "leads nowhere: workers need one to a NAT gateway"),
        ({"workers": replace(WORKERS, free=3)}, "subnet-0123456789abcdef1 has 3 free addresses and needs 4"),
        ({"public": replace(HEAD, free=0)}, "subnet-0123456789abcdef0 has 0 free addresses and needs 1"),
        ({"workers": replace(WORKERS, cidr="8.8.8.0/24")}, r"has public addresses \(8\.8\.8\.0/24\)"),
    ],
)
def test_a_vpc_where_no_cluster_can_run_is_refused(changes, message):
    with pytest.raises(SpecError, match=message):
        existing(**changes)


@pytest.mark.parametrize("closed", [{"public": replace(HEAD, way_out="")}, {"workers": replace(WORKERS, way_out="")}])
def test_a_subnet_whose_only_way_out_may_be_a_proxy_is_refused_with_what_serves_instead(closed):
    with pytest.raises(SpecError) as refused:
        existing(**closed)
    assert "no HTTP proxy" in refused.value.hint and "`access: private`" in refused.value.hint
    with pytest.raises(SpecError) as refused:
        existing(public=replace(HEAD, free=0))
    assert "proxy" not in refused.value.hint


def test_all_that_is_wrong_with_a_vpc_is_said_at_once():
    with pytest.raises(SpecError) as refused:
        existing(replace(HEAD, way_out="", free=0), replace(WORKERS, way_out="", free=0, zone="us-east-1a"), dns=False)
    assert [code for code, _ in each(refused.value)] == ["unsuited-network"] * 7
    assert all(message.startswith("network: ") for _, message in each(refused.value))


def test_one_subnet_holds_the_head_the_workers_and_the_mount_target():
    alone = {"network": {"head_subnet": HEAD.subnet_id}}
    assert existing(workers=HEAD, nodes=10, **alone)
    assert existing(workers=HEAD, nodes=11, storage="head", **alone)
    with raises_code("unsuited-network", "11 free addresses", "needs 12"):
        existing(workers=HEAD, nodes=11, **alone)


def test_workers_with_several_interfaces_can_t_be_in_a_public_subnet():
    cards = (Card(0, 2, "efa-only"), Card(1, 2, "efa-only"))
    facts = replace(GPU_FACTS, zones=("us-east-1b",), cards=cards, head=HeadFacts(2, 8, "x86_64"))
    fields = {"type": "p5.48xlarge", "efa": "yes", "head": {"type": "m5.large"}}
    assert existing(facts=facts, **fields)
    with raises_code("unsuited-network", "public addresses", "3 network"):
        existing(workers=replace(WORKERS, way_out=INTERNET), facts=facts, **fields)


def test_what_can_t_be_judged_or_costs_more_is_a_warning():
    def warned(**changes) -> str:
        return "\n".join(line for line in explain(existing(workers=replace(WORKERS, **changes))) if "warning" in line)

    assert "another gateway as its way out" in warned(way_out=OTHER)
    assert "have public addresses, at $0.005 an hour each" in warned(way_out=INTERNET)
    assert "the network ACL of subnet-0123456789abcdef1 has rules of its own" in warned(filtered=True)
