"""The ruleset of a VPC: what its security groups and routes become in nftables' language."""

from __future__ import annotations

import re

import pytest

from localcloud.network import ruleset
from localcloud.network.records import Acl, Entry, Group, Interface, Network, Route, Rule
from localcloud.nodes.machine import USER_ADDRESS

INTERNET = Route("0.0.0.0/0", to_internet=True, works=True)
NAT = Route("0.0.0.0/0", to_internet=False, works=True)


def chains(network: Network) -> dict[str, list[str]]:
    """Return the statements of each chain."""
    found = re.findall(r"chain (\w+) \{\n(.*?)\n\}", ruleset.text(network), re.S)
    return {name: [line.strip() for line in body.splitlines()] for name, body in found}


def one_node(*routes: Route, public: bool = False, group: Group | None = None) -> Network:
    groups = {"sg-1": group or Group(), "sg-2": Group()}
    return Network(groups, (Interface("10.0.0.4", ("sg-1",), routes, public),), ())


def is_reachable(network: Network) -> bool:
    """Whether users' connections may reach the only node, if its security group allows them."""
    return "set public {\ntype ipv4_addr\nelements = { 10.0.0.4 }" in ruleset.text(network)


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        (Rule("-1", networks=("0.0.0.0/0",)), [""]),
        (Rule("tcp", 22, 22, networks=("192.0.2.0/24",)), ["ip saddr 192.0.2.0/24 tcp dport 22-22"]),
        (Rule("udp", 1, 9, groups=("sg-2",)), ["ip saddr @sg-2 udp dport 1-9"]),
        (Rule("tcp", groups=("sg-1",)), ["ip saddr @sg-1 meta l4proto tcp"]),
        (Rule("icmp", 8, networks=("10.0.0.0/16",)), ["ip saddr 10.0.0.0/16 icmp type 8"]),
        (Rule("icmp", 3, 4, networks=("10.0.0.0/16",)), ["ip saddr 10.0.0.0/16 icmp type 3 icmp code 4"]),
        (Rule("50", networks=("10.0.0.0/16",)), ["ip saddr 10.0.0.0/16 meta l4proto 50"]),
        (Rule("-1", groups=("sg-of-another-vpc",)), []),
    ],
)
def test_a_rule_matches_its_peers_and_its_service(rule: Rule, matches: list[str]):
    accepted = chains(one_node(group=Group(ingress=(rule,))))["ingress_0"]
    assert accepted == [*(f"{match} accept".strip() for match in matches), "drop"]


def test_the_default_of_ssh_from_means_this_machine_which_nodes_see_by_another_address():
    rule = Rule("tcp", 22, 22, networks=("127.0.0.1/32",))
    assert f"ip saddr {USER_ADDRESS} tcp dport 22-22 accept" in chains(one_node(group=Group((rule,))))["ingress_0"]
    assert USER_ADDRESS not in str(chains(one_node(group=Group(egress=(rule,))))["egress_0"])


@pytest.mark.parametrize(
    ("routes", "public", "way_out", "reachable"),
    [
        ((), True, ["drop"], False),
        ((INTERNET,), True, ["ip daddr 0.0.0.0/0 return", "drop"], True),
        ((INTERNET,), False, ["ip daddr 0.0.0.0/0 drop", "drop"], False),
        ((NAT,), False, ["ip daddr 0.0.0.0/0 return", "drop"], False),
        ((NAT,), True, ["ip daddr 0.0.0.0/0 return", "drop"], False),
        ((Route("0.0.0.0/0", to_internet=True, works=False),), True, ["ip daddr 0.0.0.0/0 drop", "drop"], False),
    ],
)
def test_a_route_leads_out_if_its_target_works_and_the_internet_gateway_needs_a_public_address(
    routes: tuple[Route, ...], public: bool, way_out: list[str], reachable: bool
):
    network = one_node(*routes, public=public)
    assert chains(network)["way_out_0"] == way_out
    assert is_reachable(network) == reachable


def test_the_longest_prefix_decides():
    narrow = Route("198.51.100.0/24", to_internet=True, works=False)
    assert chains(one_node(NAT, narrow))["way_out_0"] == [
        "ip daddr 198.51.100.0/24 drop",
        "ip daddr 0.0.0.0/0 return",
        "drop",
    ]


def test_an_acls_entries_are_tried_in_their_order_and_not_inside_the_subnet():
    anything = Rule("-1", networks=("0.0.0.0/0",))
    ssh = Rule("tcp", 22, 22, networks=("192.0.2.0/24",))
    acl = Acl("10.0.0.0/24", (Entry(False, ssh), Entry(True, anything)), (Entry(True, ssh),))
    nodes = tuple(Interface(f"10.0.0.{number}", (), acl=acl) for number in (4, 5))
    made = chains(Network({}, nodes, ()))
    inside = "ip {} 10.0.0.0/24 return"
    assert made["enters_0"] == [
        inside.format("saddr"),
        "ip saddr 192.0.2.0/24 tcp dport 22-22 drop",
        "return",
        "drop",
    ]
    assert made["leaves_0"] == [inside.format("daddr"), "ip daddr 192.0.2.0/24 tcp dport 22-22 return", "drop"]
    assert "elements = { 10.0.0.4 : jump enters_0, 10.0.0.5 : jump enters_0 }" in ruleset.text(Network({}, nodes, ()))


def test_nodes_with_equal_groups_and_routes_share_their_chains():
    nodes = tuple(Interface(f"10.0.16.{number}", ("sg-1",), (NAT,)) for number in range(4, 68))
    made = chains(Network({"sg-1": Group()}, nodes, ()))
    assert [name for name in made if name[-1].isdigit()] == ["way_out_0", "ingress_0", "egress_0"]


def with_nodes(*numbers: int, rules: tuple[Rule, ...] = ()) -> str:
    nodes = tuple(Interface(f"10.0.16.{number}", ("sg-1",), (NAT,)) for number in numbers)
    return ruleset.text(Network({"sg-1": Group(rules)}, nodes, ()))


def test_a_node_that_comes_or_goes_changes_only_elements():
    assert ruleset.change(with_nodes(4, 5), with_nodes(5, 6)).splitlines() == [
        "delete element inet vpc sg-1 { 10.0.16.4 }",
        "add element inet vpc sg-1 { 10.0.16.6 }",
        "delete element inet vpc nodes { 10.0.16.4 }",
        "add element inet vpc nodes { 10.0.16.6 }",
        "delete element inet vpc way_out { 10.0.16.4 : jump way_out_0 }",
        "add element inet vpc way_out { 10.0.16.6 : jump way_out_0 }",
        "delete element inet vpc ingress { 10.0.16.4 : jump ingress_0 }",
        "add element inet vpc ingress { 10.0.16.6 : jump ingress_0 }",
        "delete element inet vpc egress { 10.0.16.4 : jump egress_0 }",
        "add element inet vpc egress { 10.0.16.6 : jump egress_0 }",
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", with_nodes(4)),
        (with_nodes(), with_nodes(4)),
        (with_nodes(4), with_nodes(4, rules=(Rule("-1", networks=("0.0.0.0/0",)),))),
    ],
    ids=["nothing is loaded", "the first node has the first chains", "a rule"],
)
def test_any_other_change_replaces_the_ruleset(before: str, after: str):
    assert ruleset.change(before, after) == after
