"""A VPC's network as a ruleset of nftables, which drops what its security groups and routes do not allow.

The VPC's namespace is the router: a packet between nodes crosses its bridge (`forward`), a packet to the internet, to
AWS's API or to a mount target ends in it (`input`), and a packet from the internet begins in it (`output`).
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable, Sequence

from localcloud.network.records import ALL, Acl, Interface, Network, Route, Rule
from localcloud.nodes.machine import API_ADDRESS, API_PORT, DNS_ADDRESS, IMDS_ADDRESS, USER_ADDRESS

# The default of `ssh_from`: this machine, from which users' connections come. Nodes see them from USER_ADDRESS.
THIS_MACHINE = "127.0.0.1/32"
_EVERYWHERE = "0.0.0.0/0"
_WITH_PORTS = ("tcp", "udp")
_TABLE = "inet vpc"
# A set or a map, and what is in it.
_ELEMENTS = re.compile(r"(?<=\n)(?:set|map) ([\w-]+) \{\ntype [^\n]+\n(?:elements = \{ ([^\n]*) \}\n)?\}")

# Nothing filters the metadata service and the name server (docs/aws-behaviour.md 2.41, 2.44). Routes and network ACLs
# hold for every packet, security groups only for the first of a connection (2.40). No rule names IPv6, which a VPC must
# enable.
_HOOKS = f"""\
chain forward {{
type filter hook forward priority 0; policy drop;
ip saddr vmap @leaves
ip daddr vmap @enters
goto inside
}}
chain input {{
type filter hook input priority 0; policy drop;
iif lo accept
ip daddr {{ {IMDS_ADDRESS}, {DNS_ADDRESS} }} accept
ip saddr vmap @leaves
ip daddr vmap @enters
ip daddr @mount_targets goto inside
ip saddr @nodes ip daddr @api tcp dport {API_PORT} accept
ip saddr vmap @way_out
ct state established,related accept
ip saddr vmap @egress
ip saddr @nodes accept
}}
chain output {{
type filter hook output priority 0; policy drop;
oif lo accept
ip saddr {{ {IMDS_ADDRESS}, {DNS_ADDRESS} }} accept
ip saddr vmap @leaves
ip daddr vmap @enters
ct state established,related accept
ip saddr {USER_ADDRESS} ip daddr @public ip daddr vmap @ingress
}}
chain inside {{
ct state established,related accept
ip saddr vmap @egress
ip daddr vmap @ingress
drop
}}
"""


def text(network: Network) -> str:
    """Return nft's input, which replaces the ruleset in one transaction."""
    everyone = network.nodes + network.mount_targets
    parts = [
        f"add table {_TABLE}\ndelete table {_TABLE}\ntable {_TABLE} {{",
        *(_set(group, (i.address for i in everyone if group in i.groups)) for group in network.groups),
        _set("nodes", (i.address for i in network.nodes)),
        # Whether a node reaches a service through an endpoint is decided for each request (network.reach).
        _set("api", [API_ADDRESS] if network.endpoints else []),
        _set("mount_targets", (i.address for i in network.mount_targets)),
        _set("public", (i.address for i in network.nodes if i.public and _answers_reach_users(i))),
        *_ways_out(network.nodes),
        *_acls("enters", everyone, "saddr"),
        *_acls("leaves", everyone, "daddr"),
        *_filters("ingress", network, everyone, "saddr", "accept"),
        *_filters("egress", network, everyone, "daddr", "return"),
        _HOOKS + "}\n",
    ]
    return "\n".join(parts)


def change(before: str, after: str) -> str:
    """Return nft's input that makes one ruleset of another: only the elements that differ, if nothing else does.

    The ruleset changes with each node that comes or goes, and nft takes ten times as long to replace it.
    """
    old, new = (dict(_ELEMENTS.findall(one)) for one in (before, after))
    if _ELEMENTS.sub(r"\1", before) != _ELEMENTS.sub(r"\1", after):
        return after
    lines: list[str] = []
    for name in new:
        had, has = (set(filter(None, one[name].split(", "))) for one in (old, new))
        lines += [f"delete element {_TABLE} {name} {{ {', '.join(sorted(had - has))} }}"] * bool(had - has)
        lines += [f"add element {_TABLE} {name} {{ {', '.join(sorted(has - had))} }}"] * bool(has - had)
    return "\n".join([*lines, ""])


def _set(name: str, addresses: Iterable[str]) -> str:
    return f"set {name} {{\ntype ipv4_addr\n{_elements(sorted(addresses))}}}"


def _map(name: str, verdicts: dict[str, str]) -> str:
    return f"map {name} {{\ntype ipv4_addr : verdict\n{_elements([f'{a} : {v}' for a, v in verdicts.items()])}}}"


def _elements(elements: Sequence[str]) -> str:
    return f"elements = {{ {', '.join(elements)} }}\n" if elements else ""


def _chain(name: str, statements: Iterable[str]) -> str:
    return "\n".join([f"chain {name} {{", *statements, "drop", "}"])


def _filters(
    direction: str, network: Network, interfaces: Sequence[Interface], peer: str, verdict: str
) -> Iterable[str]:
    """Yield a chain for each combination of groups, and the map from addresses to them."""
    combinations = list(dict.fromkeys(i.groups for i in interfaces))
    for number, groups in enumerate(combinations):
        rules = [
            rule for group in groups if group in network.groups for rule in getattr(network.groups[group], direction)
        ]
        matches = [match for rule in rules for match in _matches(rule, peer, network)]
        yield _chain(f"{direction}_{number}", (f"{match} {verdict}" for match in dict.fromkeys(matches)))
    chains = {i.address: f"jump {direction}_{combinations.index(i.groups)}" for i in interfaces}
    yield _map(direction, chains)


def _acls(way: str, interfaces: Sequence[Interface], peer: str) -> Iterable[str]:
    """Yield a chain for each network ACL, which sees only what enters or leaves its subnet, and the map to them."""
    acls = list(dict.fromkeys(i.acl for i in interfaces if i.acl))
    for number, acl in enumerate(acls):
        yield _chain(f"{way}_{number}", [f"ip {peer} {acl.network} return", *_in_order(acl, way, peer)])
    yield _map(way, {i.address: f"jump {way}_{acls.index(i.acl)}" for i in interfaces if i.acl})


def _in_order(acl: Acl, way: str, peer: str) -> Iterable[str]:
    for entry in acl.ingress if way == "enters" else acl.egress:
        verdict = "return" if entry.allows else "drop"
        yield from (f"{_at(block, peer)} {_service(entry.rule)} {verdict}".strip() for block in entry.rule.networks)


def _at(block: str, peer: str) -> str:
    return "" if block == _EVERYWHERE else f"ip {peer} {block}"


def _matches(rule: Rule, peer: str, network: Network) -> list[str]:
    """Return the expressions of which a packet must match one."""
    peers = [f"ip {peer} @{group}" for group in rule.groups if group in network.groups]
    for block in rule.networks:
        peers.append(_at(block, peer))
        if peer == "saddr" and block == THIS_MACHINE:
            peers.append(f"ip saddr {USER_ADDRESS}")
    return [f"{one} {_service(rule)}".strip() for one in peers]


def _service(rule: Rule) -> str:
    if rule.protocol == ALL:
        return ""
    if rule.protocol in _WITH_PORTS and rule.last is not None:
        return f"{rule.protocol} dport {rule.first}-{rule.last}"
    if rule.protocol == "icmp" and rule.first is not None:
        return f"icmp type {rule.first}" + ("" if rule.last is None else f" icmp code {rule.last}")
    return f"meta l4proto {rule.protocol}"


def _ways_out(nodes: Sequence[Interface]) -> Iterable[str]:
    """Yield a chain for each combination of routes, of which the longest prefix decides, and the map to them."""
    kinds = list(dict.fromkeys((i.routes, i.public) for i in nodes))
    for number, (routes, public) in enumerate(kinds):
        statements = (f"ip daddr {r.network} {'return' if leads_out(r, public) else 'drop'}" for r in by_length(routes))
        yield _chain(f"way_out_{number}", statements)
    yield _map("way_out", {i.address: f"jump way_out_{kinds.index((i.routes, i.public))}" for i in nodes})


def by_length(routes: Iterable[Route]) -> list[Route]:
    """Return the routes in the order in which they decide."""
    return sorted(routes, key=lambda route: -int(route.network.rpartition("/")[2]))


@functools.lru_cache(maxsize=1 << 14)
def is_within(block: str, network: str) -> bool:
    """Whether an address, or a whole block, is in a network. Remembered, because each request of a node asks."""
    return ipaddress.IPv4Network(block).subnet_of(ipaddress.IPv4Network(network))


def leads_out(route: Route, public: bool) -> bool:
    """Whether a route takes packets of a node, which may have a public address, to the internet."""
    return route.works and (public or not route.to_internet)


def _answers_reach_users(interface: Interface) -> bool:
    """Whether an interface with a public address can answer users: its subnet has a route to the internet gateway."""
    route = next((r for r in by_length(interface.routes) if is_within(USER_ADDRESS, r.network)), None)
    return route is not None and route.works and route.to_internet
