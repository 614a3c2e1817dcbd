"""Which way a node's request takes to a service of AWS: an endpoint of its VPC, its way out, or none."""

from __future__ import annotations

import pytest

from localcloud.network import reach, ruleset
from localcloud.network.records import Endpoint, Group, Interface, Network, Route, Rule

NODE = "10.0.0.4"
OPEN = Rule("-1", networks=("0.0.0.0/0",))
HTTPS_FROM_NODES = Rule("tcp", 443, 443, groups=("sg-nodes",))
NAT = Route("0.0.0.0/0", to_internet=False, works=True)
DOOR = Interface("10.0.0.9", ("sg-doors",))
S3 = Endpoint("s3", "of s3", tables=("rtb-1",), networks=("52.216.0.0/15",))


def sqs(has_private_dns: bool = True) -> Endpoint:
    return Endpoint("sqs", "of sqs", (DOOR,), has_private_dns)


def way(
    service: str,
    *endpoints: Endpoint,
    routes: tuple[Route, ...] = (),
    egress: Rule = OPEN,
    ingress: Rule = HTTPS_FROM_NODES,
    table: str = "rtb-1",
) -> str | None:
    """Return the policy of the endpoint on the way, "" for the way out, None if there is no way."""
    groups = {"sg-nodes": Group(egress=(egress,)), "sg-doors": Group(ingress=(ingress,))}
    node = Interface(NODE, ("sg-nodes",), routes, table=table)
    found = reach.way(Network(groups, (node,), (), endpoints), NODE, service)
    return found.policy if found else None


def test_without_endpoints_the_way_out_decides():
    assert way("sqs") is None
    assert way("sqs", routes=(NAT,)) == ""
    assert way("sqs", routes=(NAT,), egress=Rule("tcp", 22, 22, networks=("0.0.0.0/0",))) is None
    assert way("sqs", routes=(Route("0.0.0.0/0", to_internet=True, works=True),)) is None, "no public address"
    assert way("sqs", routes=(NAT, Route("169.254.0.0/16", to_internet=False, works=False))) is None


def test_an_endpoint_leads_to_its_service_alone():
    assert way("sqs", sqs(), S3) == "of sqs"
    assert way("s3", sqs(), S3) == "of s3"
    assert way("sns", sqs(), S3) is None
    assert way("", sqs(), S3) is None


def test_an_endpoint_without_the_service_s_name_is_not_found():
    assert way("sqs", sqs(has_private_dns=False)) is None
    assert way("sqs", sqs(has_private_dns=False), routes=(NAT,)) == ""


@pytest.mark.parametrize(
    "ingress",
    [Rule("tcp", 80, 80, groups=("sg-nodes",)), Rule("tcp", 443, 443, groups=("sg-doors",)), Rule("udp", 1, 999)],
)
def test_an_endpoint_s_group_must_let_https_in_also_where_there_is_another_way(ingress: Rule):
    assert way("sqs", sqs(), ingress=ingress, routes=(NAT,)) is None
    assert way("sqs", sqs(), ingress=Rule("tcp", networks=("10.0.0.0/24",))) == "of sqs"


def test_the_node_s_group_must_let_it_out_to_the_endpoint():
    assert way("sqs", sqs(), egress=Rule("tcp", 443, 443, groups=("sg-doors",))) == "of sqs"
    assert way("sqs", sqs(), egress=Rule("tcp", 443, 443, networks=("192.0.2.0/24",))) is None


def test_a_gateway_endpoint_serves_the_subnets_of_its_route_tables():
    assert way("s3", S3, table="rtb-2") is None
    assert way("s3", S3, table="rtb-2", routes=(NAT,)) == ""
    assert way("s3", S3, egress=Rule("tcp", 443, 443, networks=S3.networks)) == "of s3"
    assert way("s3", S3, egress=Rule("tcp", 443, 443, networks=("10.0.0.0/8",))) is None


def test_a_stranger_has_no_way():
    assert reach.way(Network({}, (), (), (S3,)), NODE, "s3") is None


def test_the_filter_lets_requests_through_to_be_judged_only_where_there_are_endpoints():
    node = Interface(NODE, ("sg-nodes",))
    assert "set api {\ntype ipv4_addr\nelements = { 169.254.1.1 }" in ruleset.text(Network({}, (node,), (), (S3,)))
    assert "set api {\ntype ipv4_addr\n}" in ruleset.text(Network({}, (node,), ()))


def test_what_an_instance_signs_itself_is_for_cloudformation():
    asked: list[str] = []

    class Ways:
        def way(self, _vpc_id: str, _address: str, service: str) -> reach.Way:
            asked.append(service)
            return reach.Way()

    app = reach.around(Ways(), lambda environ, start_response: [])
    app({reach.VPC: "vpc-1", "REMOTE_ADDR": NODE, "HTTP_AUTHORIZATION": "CFN_V1 ZG9j:c2ln"}, print)
    assert asked == ["cloudformation"]
