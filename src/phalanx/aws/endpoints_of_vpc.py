"""The endpoints of a user's VPC, as EC2 describes them: what they serve, and for whom they are open."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from phalanx.aws import tags
from phalanx.plan.existing_vpc import Endpoint

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

# Their names and routes lead nowhere, or soon will.
_GONE = frozenset({"deleting", "deleted", "rejected", "expired", "failed"})
_HTTPS = 443


def find(api: Aws, vpc: str, cluster: str) -> tuple[tuple[Endpoint, ...], int]:
    """Return the endpoints that are not the cluster's, and how many of the VPC count against the quota.

    Interface endpoints without private DNS serve nobody who calls a service by its name.
    """
    entries = [one for one in _described(api, vpc) if not tags.is_of(one, cluster)]
    named = [one for one in entries if one["VpcEndpointType"] == "Interface" and _takes_over(one)]
    zones = _zones(api, named)
    rules = _rules(api, named)
    found = [_gateway(one) for one in entries if one["VpcEndpointType"] == "Gateway"]
    found += [_interface(one, zones, rules) for one in named]
    return tuple(found), sum(one["VpcEndpointType"] != "Gateway" for one in entries)


def serving(api: Aws, vpc: str, tables: Iterable[str]) -> list[str]:
    """Return the services that have an endpoint, whoever made it, for nodes in subnets with all these route tables."""
    entries, wanted = list(_described(api, vpc)), {*tables}
    interfaces = {_service(one) for one in entries if one["VpcEndpointType"] == "Interface" and _takes_over(one)}
    routed: dict[str, set[str]] = {}
    for one in entries:
        routed.setdefault(_service(one), set()).update(one.get("RouteTableIds", []))
    return sorted(interfaces | {service for service, there in routed.items() if wanted <= there})


def _described(api: Aws, vpc: str) -> Iterator[dict[str, Any]]:
    there = api.pages("ec2", "describe_vpc_endpoints", "VpcEndpoints", Filters=_where("vpc-id", [vpc]))
    return (one for one in there if one["State"].lower() not in _GONE)


def _takes_over(entry: Mapping[str, Any]) -> bool:
    """Whether the service's name leads to it in all of the VPC (docs/aws-behaviour.md 2.52, 2.57)."""
    of_resolver_only = entry.get("DnsOptions", {}).get("PrivateDnsOnlyForInboundResolverEndpoint")
    return bool(entry.get("PrivateDnsEnabled")) and not of_resolver_only


def _gateway(entry: Mapping[str, Any]) -> Endpoint:
    tables = tuple(entry.get("RouteTableIds", []))
    return Endpoint(entry["VpcEndpointId"], _service(entry), tables=tables, is_open=_is_open(entry))


def _interface(
    entry: Mapping[str, Any], zones: Mapping[str, str], rules: Mapping[str, list[dict[str, Any]]]
) -> Endpoint:
    groups = tuple(group["GroupId"] for group in entry["Groups"])
    return Endpoint(
        entry["VpcEndpointId"],
        _service(entry),
        tuple(sorted({zones[subnet] for subnet in entry["SubnetIds"] if subnet in zones})),
        groups,
        open_to([rule for group in groups for rule in rules.get(group, [])]),
        is_open=_is_open(entry),
    )


def _service(entry: Mapping[str, Any]) -> str:
    return entry["ServiceName"].rpartition(".")[2]


def _zones(api: Aws, entries: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the zones of the endpoints' subnets."""
    names = sorted({subnet for one in entries for subnet in one["SubnetIds"]})
    found = api.pages("ec2", "describe_subnets", "Subnets", Filters=_where("subnet-id", names)) if names else ()
    return {one["SubnetId"]: one["AvailabilityZone"] for one in found}


def _rules(api: Aws, entries: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rules of the endpoints' security groups."""
    names = sorted({group["GroupId"] for one in entries for group in one["Groups"]})
    where = {"Filters": _where("group-id", names)}
    groups = api.pages("ec2", "describe_security_groups", "SecurityGroups", **where) if names else ()
    return {one["GroupId"]: one["IpPermissions"] for one in groups}


def _is_for_https(rule: Mapping[str, Any]) -> bool:
    if rule["IpProtocol"] == "-1":
        return True
    return rule["IpProtocol"] in ("tcp", "6") and rule.get("FromPort", 0) <= _HTTPS <= rule.get("ToPort", 65535)


def open_to(rules: list[dict[str, Any]]) -> tuple[str, ...] | None:
    """Return the networks from which the rules let HTTPS in; None if prefix lists have more.

    A rule may also name groups, in which no node of a new cluster is.
    """
    rules = [rule for rule in rules if _is_for_https(rule)]
    if any(rule.get("PrefixListIds") for rule in rules):
        return None
    return tuple(dict.fromkeys(block["CidrIp"] for rule in rules for block in rule.get("IpRanges", [])))


def _is_open(entry: Mapping[str, Any]) -> bool:
    """Whether the policy allows everything to everybody, as AWS's own does; also where it is not shown."""
    if not (text := entry.get("PolicyDocument")):
        return True
    statements: Any = json.loads(text).get("Statement", [])
    statements = [statements] if isinstance(statements, dict) else statements
    every = {"Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*"}
    return len(statements) == 1 and {key: value for key, value in statements[0].items() if key != "Sid"} == every


def _where(name: str, values: Iterable[str]) -> list[dict[str, Any]]:
    return [{"Name": name, "Values": list(values)}]
