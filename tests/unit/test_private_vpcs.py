"""`access: private` in an existing VPC: which endpoints are made there, and what keeps a cluster from working."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from clusters import FACTS, aws_spec
from error_codes import raises_code
from plans import EMR, PLANS, resources

from phalanx.errors import SpecError
from phalanx.plan import vpc_endpoints
from phalanx.plan.existing_vpc import INTERNET, NAT, OTHER, Endpoint, ExistingVpc, Subnet
from phalanx.plan.plan import Plan, make_plan
from phalanx.plan.plan_text import as_dict, explain
from phalanx.plan.quotas import Quota
from phalanx.template import egress, fleet, synthesize
from phalanx.template.policy import policy

HEAD = Subnet("subnet-0123456789abcdef0", "vpc-0123456789abcdef0", "us-east-1b", "10.1.0.0/26", 50, "", table="rtb-1")
WORKERS = replace(HEAD, subnet_id="subnet-0123456789abcdef1", cidr="10.1.1.0/26", table="rtb-2")
ZONE, BLOCK = ("us-east-1b",), ("10.1.0.0/16",)
SQS = Endpoint("vpce-1", "sqs", ZONE, ("sg-1",), BLOCK)
S3 = Endpoint("vpce-2", "s3", tables=("rtb-1",))
ALL = vpc_endpoints.interfaces(aws_spec(network={"access": "private"}, ssh_from=""))


def private(*endpoints: Endpoint, head: Subnet = HEAD, workers: Subnet = HEAD, dns: bool = True, **fields: Any) -> Plan:
    """Return the plan for a private cluster in these subnets."""
    network = {"access": "private", "head_subnet": head.subnet_id, "worker_subnet": workers.subnet_id}
    found = ExistingVpc(head.vpc, dns, dns, head, workers, BLOCK, endpoints)
    chosen = aws_spec(**{"network": network, "image": "dlami-base", "ssh_from": "", **fields})
    return make_plan(chosen, replace(FACTS, cloud="aws", vpc=found))


def document(plan: Plan) -> dict[str, Any]:
    return json.loads(synthesize(plan))


def endpoints(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the endpoints of the document, by their services."""
    made = resources(document(plan), "AWS::EC2::VPCEndpoint").values()
    return {one["ServiceName"]["Fn::Sub"].rpartition(".")[2]: one for one in made}


def everything() -> tuple[Endpoint, ...]:
    """Return all endpoints that a private cluster needs, made by somebody else."""
    interfaces = (replace(SQS, endpoint_id=f"vpce-{one}", service=one) for one in ALL)
    return (*interfaces, S3, replace(S3, service="dynamodb"))


def test_only_the_endpoints_that_the_vpc_lacks_are_made():
    assert endpoints(private()).keys() == {*ALL, "s3", "dynamodb"}
    made = endpoints(private(SQS, S3))
    assert made.keys() == {*ALL, "dynamodb"} - {"sqs"}
    assert made["sns"]["SubnetIds"] == [{"Ref": "PrivateSubnet"}]
    assert made["dynamodb"]["RouteTableIds"] == ["rtb-1"]
    assert not endpoints(private(*everything()))


def test_a_gateway_endpoint_is_made_for_the_route_tables_that_lack_one():
    made = endpoints(private(S3, workers=WORKERS))
    assert made["s3"]["RouteTableIds"] == ["rtb-2"]
    assert made["dynamodb"]["RouteTableIds"] == ["rtb-1", "rtb-2"]
    assert endpoints(private(workers=replace(WORKERS, table="rtb-1")))["s3"]["RouteTableIds"] == ["rtb-1"]


def test_the_rest_of_the_vpc_reaches_the_services_through_the_new_endpoints():
    """Their names lead there for all of the VPC."""
    found = document(private())
    group = resources(found, "AWS::EC2::SecurityGroup")["EndpointSecurityGroup"]
    assert [(rule["CidrIp"], rule["FromPort"]) for rule in group["SecurityGroupIngress"]] == [("10.1.0.0/16", 443)]
    assert "EndpointSecurityGroup" not in document(private(*everything()))["Resources"]
    assert "PolicyDocument" not in str(endpoints(private())), "they may have to call with other accounts' principals"


def test_nothing_else_of_the_network_is_made_and_nothing_is_public():
    found = document(private(workers=WORKERS))
    kinds = {one["Type"].removeprefix("AWS::EC2::") for one in found["Resources"].values()}
    assert not kinds & {"VPC", "Subnet", "NatGateway", "InternetGateway", "Route", "RouteTable", "EIP"}
    given = {name: one.get("Default") for name, one in found["Parameters"].items()}
    assert [given[name] for name in ("Vpc", "HeadSubnet", "PrivateSubnet")] == [
        *(HEAD.vpc, HEAD.subnet_id, WORKERS.subnet_id)
    ]
    assert not {"PublicSubnet", "SshLocation"} & given.keys()
    groups = resources(found, "AWS::AutoScaling::AutoScalingGroup")
    assert [groups[f"{one}Group"]["VPCZoneIdentifier"] for one in ("Head", "Workers")] == [
        [{"Ref": "HeadSubnet"}],
        [{"Ref": "PrivateSubnet"}],
    ]
    assert {"SqsEndpoint", "S3Endpoint"} <= set(found["Resources"]["WorkersGroup"]["DependsOn"])
    assert "AssociatePublicIpAddress" not in str(found)
    alone = document(private())
    assert "HeadSubnet" not in alone["Parameters"]


@pytest.mark.parametrize("way_out", [NAT, OTHER])
def test_with_a_way_out_nothing_is_made_and_packages_can_be_had(way_out: str):
    plan = private(head=replace(HEAD, way_out=way_out), workers=replace(HEAD, way_out=way_out), image="ubuntu-24.04")
    assert not endpoints(plan)
    assert "offline" not in fleet.config("head", plan)
    assert plan.cost_usd_per_hour == pytest.approx(4 * 0.085)
    assert "pypi.org" in [one.host for one in egress.of(plan, "amazonaws.com")]
    assert "no node reaches the internet" not in "\n".join(explain(plan))
    assert fleet.config("head", private())["offline"] == "1"


def test_plan_names_what_is_made_what_is_used_and_what_it_costs():
    shown = "\n".join(explain(private(SQS, S3, type="c5.large")))
    assert "your vpc-0123456789abcdef0: subnet-0123456789abcdef0 (all nodes), no public address; " in shown
    assert "; endpoints for autoscaling, cloudformation, ec2, logs, sns, ssm, ssmmessages, sts, dynamodb" in shown
    assert "yours for sqs, s3" in shown
    assert "8 endpoints at $0.01 each" in shown
    assert "the new endpoints serve all of vpc-0123456789abcdef0" in shown
    assert as_dict(private(SQS))["cost_usd_per_hour"] == round(4 * 0.085 + 8 * 0.01, 4)
    assert as_dict(private(*everything()))["cost_usd_per_hour"] == round(4 * 0.085, 4)
    quotas = [one for one in as_dict(private(SQS, S3))["warnings"] if "quota" in one]
    assert not [one for one in quotas if "Elastic IP" in one or "VPCs" in one]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"head": replace(HEAD, way_out=INTERNET), "workers": WORKERS},
            r"the default route of subnet-\w+ leads to an internet gateway, which serves only nodes with a public",
        ),
        (
            {"head": replace(HEAD, gives_addresses=True), "workers": WORKERS},
            "subnet-0123456789abcdef0 gives nodes public addresses: turn off its attribute MapPublicIpOnLaunch",
        ),
        ({"dns": False}, r"has no DNS: .*\n.*enableDnsHostnames"),
        ({"head": replace(HEAD, free=13), "workers": replace(HEAD, free=13)}, "has 13 free addresses and needs 14"),
    ],
)
def test_what_can_t_work_is_refused(changes: dict[str, Any], message: str):
    with pytest.raises(SpecError, match=message):
        private(**changes)


def shared(*endpoints: Endpoint, **changes: Any) -> Plan:
    """Return the plan in a VPC that another account shares."""
    network = {"access": "private", "head_subnet": HEAD.subnet_id}
    found = ExistingVpc(HEAD.vpc, True, True, *2 * (replace(HEAD, **changes),), BLOCK, endpoints, owner="9" * 12)
    chosen = aws_spec(network=network, image="dlami-base", ssh_from="")
    return make_plan(chosen, replace(FACTS, cloud="aws", vpc=found))


def test_in_a_vpc_of_another_account_no_endpoint_is_made():
    with pytest.raises(SpecError, match=f"belongs to account {'9' * 12}, where only that account"):
        shared(SQS)
    assert endpoints(shared(*everything())) == {}
    assert any("can't be seen" in line for line in explain(shared(way_out=NAT)))


@pytest.mark.parametrize("way_out", ["", NAT])
def test_an_endpoint_that_does_not_let_the_nodes_in_is_refused_with_what_to_do(way_out: str):
    """It takes over its service's name, also where there is another way."""
    closed = replace(SQS, open_to=("10.1.0.0/27", "192.168.0.0/16"))
    subnet = replace(HEAD, way_out=way_out)
    with pytest.raises(SpecError) as refused:
        private(closed, head=subnet, workers=subnet)
    assert refused.value.code == "unsuited-network"
    assert "vpce-1 (sqs)" in refused.value.message and "from 10.1.0.0/26" in refused.value.message
    assert "authorize-security-group-ingress --group-id sg-1 --protocol tcp --port 443 --cidr 10.1.0.0/26" in (
        refused.value.message
    )
    halves = replace(SQS, open_to=("10.1.0.0/27", "10.1.0.32/27"))
    assert private(halves, head=subnet, workers=subnet)


def test_a_public_cluster_needs_them_to_let_it_in_too():
    found = ExistingVpc(HEAD.vpc, True, True, HEAD, HEAD, BLOCK, (replace(SQS, open_to=()),))
    public = replace(found, head=replace(HEAD, way_out=INTERNET), workers=replace(HEAD, way_out=INTERNET))
    chosen = aws_spec(network={"head_subnet": HEAD.subnet_id})
    with raises_code("unsuited-network", "vpce-1 (sqs)"):
        make_plan(chosen, replace(FACTS, cloud="aws", vpc=public))
    other = replace(public, endpoints=(replace(SQS, service="kms", open_to=()),))
    assert not endpoints(make_plan(chosen, replace(FACTS, cloud="aws", vpc=other)))


EMR_WITH_METRICS = replace(EMR, spec=replace(EMR.spec, metrics="yes"))


@pytest.mark.parametrize("plan", [PLANS["local"], PLANS["private"], EMR, EMR_WITH_METRICS])
def test_the_endpoints_that_are_judged_are_those_of_services_that_nodes_call(plan: Plan):
    """Another one of the VPC's may let in whom it likes."""
    assert {*vpc_endpoints.called(plan.spec)} | {*vpc_endpoints.interfaces(plan.spec)} == {
        *(one for one in egress.services(plan) if one not in vpc_endpoints.GATEWAYS)
    }


@pytest.mark.parametrize(
    ("endpoint", "warning"),
    [
        (replace(SQS, zones=("us-east-1a",)), "your endpoint vpce-1 (sqs) is in us-east-1a: calls from us-east-1b"),
        (replace(SQS, open_to=None), "the rules of your endpoint vpce-1 (sqs) name a prefix list"),
        (replace(SQS, is_open=False), "your endpoint vpce-1 (sqs) has a policy of its own"),
        (replace(S3, is_open=False), "your endpoint vpce-2 (s3) has a policy of its own"),
    ],
)
def test_what_can_t_be_judged_or_is_worse_is_a_warning(endpoint: Endpoint, warning: str):
    assert warning in "\n".join(explain(private(endpoint)))
    assert warning not in "\n".join(explain(private(SQS, S3)))


def test_whoever_runs_it_may_log_in_and_use_the_route_tables():
    with_all, lacking = (json.dumps(policy(document(one), "demo")) for one in (private(*everything()), private()))
    assert "ssm:StartSession" in with_all and "ssm:StartSession" in lacking
    assert "subnet/subnet-0123456789abcdef0" in lacking
    assert "route-table/rtb-1" in lacking and "route-table/rtb-1" not in with_all


def test_endpoints_count_against_their_quotas():
    def units(plan: Plan) -> dict[str, int]:
        return {one.unit: one.needed for one in private_quotas(plan)}

    assert units(private()) == {"interface endpoint": 9, "gateway endpoint": 2}
    assert units(private(SQS, S3)) == {"interface endpoint": 8, "gateway endpoint": 1}
    assert units(private(*everything())) == {}


def private_quotas(plan: Plan) -> list[Quota]:
    from phalanx.plan import quotas

    return [one for one in quotas.of(plan.spec, 2, None, plan.facts.vpc) if one.unit != "vCPU"]


def test_blocked_public_access_is_refused_where_nodes_need_the_internet_gateway():
    facts = replace(FACTS, cloud="aws")
    for mode in ("block-ingress", "block-bidirectional"):
        with raises_code("blocked-public-access", mode) as refused:
            make_plan(aws_spec(), replace(facts, blocked_access=mode))
        assert "access: private" in (refused.value.hint or "")
        with raises_code("blocked-public-access", mode) as refused:
            make_plan(EMR.spec, replace(EMR.facts, blocked_access=mode))
        assert "access: private" not in (refused.value.hint or "")
        make_plan(
            aws_spec(network={"access": "private"}, ssh_from="", image="dlami-base"),
            replace(facts, blocked_access=mode),
        )


def test_private_nodes_behind_a_nat_gateway_are_cut_off_only_by_the_bidirectional_mode():
    behind_nat = replace(HEAD, way_out=NAT)
    open_plan = private(head=behind_nat, workers=behind_nat)
    make_plan(open_plan.spec, replace(open_plan.facts, blocked_access="block-ingress"))
    with raises_code("blocked-public-access", "block-bidirectional"):
        make_plan(open_plan.spec, replace(open_plan.facts, blocked_access="block-bidirectional"))
    closed = private()
    make_plan(closed.spec, replace(closed.facts, blocked_access="block-bidirectional"))
