"""The VPC of the subnets that a spec names, with its endpoints: all that decides whether nodes can run there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from phalanx.aws import tags
from phalanx.errors import CloudError, SpecError
from phalanx.plan import vpc_endpoints
from phalanx.plan.existing_vpc import INTERNET, NAT, OTHER, Endpoint, ExistingVpc, Subnet
from phalanx.spec.spec import ClusterSpec

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_EVERYWHERE = "0.0.0.0/0"
# States of endpoints whose names and routes lead nowhere, or soon will.
_GONE = frozenset({"deleting", "deleted", "rejected", "expired", "failed"})
_HTTPS = 443


def find(api: Aws, spec: ClusterSpec) -> ExistingVpc | None:
    """Return the VPC of the spec's subnets; None if it names none. Raises SpecError if one does not exist."""
    if not spec.subnets:
        return None
    described = _described(api, spec.subnets)
    head, workers = (_subnet(api, described[name], spec.name) for name in spec.subnets)
    found, number = _endpoints(api, head.vpc, spec.name)
    (vpc,) = api.pages("ec2", "describe_vpcs", "Vpcs", Filters=_where("vpc-id", head.vpc))
    account = api.call("sts", "get_caller_identity")["Account"]
    return ExistingVpc(
        head.vpc,
        _has(api, head.vpc, "EnableDnsSupport"),
        _has(api, head.vpc, "EnableDnsHostnames"),
        head,
        workers,
        _blocks(vpc),
        found,
        number,
        vpc["OwnerId"] if vpc["OwnerId"] != account else "",
    )


def public_access_mode(api: Aws) -> str:
    """Return the account's mode of VPC Block Public Access in the region; "" if it blocks nothing.

    block-ingress or block-bidirectional (docs/aws-behaviour.md 2.70).
    """
    answer = api.call("ec2", "describe_vpc_block_public_access_options")
    mode = answer.get("VpcBlockPublicAccessOptions", {}).get("InternetGatewayBlockMode", "off")
    return "" if mode == "off" else mode


def blocked_access(api: Aws, vpc: ExistingVpc | None) -> str:
    """Return the mode that counts for this VPC, or for a new one; "" if none does, or the user may not ask.

    A participant does not see the settings of a shared VPC's owner.
    """
    if vpc and vpc.owner:
        return ""
    try:
        mode = public_access_mode(api)
        names = {vpc.vpc, *(one.subnet_id for one in vpc.subnets)} if mode and vpc else set[str]()
        return _least_blocked(api, mode, names) if names else mode
    except CloudError:
        return ""


def _least_blocked(api: Aws, mode: str, names: set[str]) -> str:
    """Return what exclusions of the VPC or of its subnets leave of the mode."""
    key = "VpcBlockPublicAccessExclusions"
    for one in api.pages("ec2", "describe_vpc_block_public_access_exclusions", key):
        if one["ResourceArn"].rpartition("/")[2] in names and one["State"] in ("create-complete", "update-complete"):
            if one["InternetGatewayExclusionMode"] == "allow-bidirectional":
                return ""
            mode = "block-ingress"
    return mode


def services(api: Aws, vpc: str, subnets: tuple[str, ...]) -> list[str] | None:
    """Return the services that have endpoints for nodes in these subnets; None if all of them have a way out."""
    tables = [_route_table(api, vpc, subnet) for subnet in subnets]
    closed = [table["RouteTableId"] for table in tables if not _way_out(api, table)]
    return _serving(api, vpc, closed) if closed else None


def with_endpoints(
    api: Aws, spec: ClusterSpec, zones: tuple[str, ...], vpc: ExistingVpc | None = None
) -> tuple[str, ...]:
    """Return those of the zones in which a private cluster's stack can make all endpoints; all for another one.

    Raises SpecError if there is none among those that the spec prefers.
    """
    if not (made := vpc_endpoints.made(spec, vpc)):
        return zones
    lacking = _lacking(api, made, zones)
    able = tuple(zone for zone in zones if not lacking[zone])
    preferred = (vpc.workers.zone,) if vpc else spec.zones or zones
    wanted = [zone for zone in preferred if zone in lacking]
    if wanted and not set(wanted) & set(able):
        services = ", ".join(lacking[wanted[0]])
        raise SpecError(
            f"network: access can't be private in {wanted[0]}, which has no endpoint for {services}",
            f"These zones have all: {', '.join(able)}." if able else "Choose another `region`, or public access.",
            code="no-endpoint-service",
        )
    return able


def _lacking(api: Aws, wanted: tuple[str, ...], zones: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the services without an interface endpoint, for each of the zones."""
    names = {f"com.amazonaws.{api.region}.{service}": service for service in wanted}
    there = api.pages("ec2", "describe_vpc_endpoint_services", "ServiceDetails")
    found = {one["ServiceName"]: one["AvailabilityZones"] for one in there}
    return {zone: [names[name] for name in names if zone not in found.get(name, ())] for zone in zones}


def _described(api: Aws, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Describe the subnets by their ids. A filter, unlike a list of ids, does not fail where one is missing."""
    entries = api.pages("ec2", "describe_subnets", "Subnets", Filters=_where("subnet-id", *dict.fromkeys(names)))
    found = {entry["SubnetId"]: entry for entry in entries}
    if missing := [name for name in dict.fromkeys(names) if name not in found]:
        wrong = [f"network: {api.region} has no subnet {name}" for name in missing]
        raise SpecError.alike(wrong, "`aws ec2 describe-subnets` lists them.", code="no-subnet")
    return found


def _subnet(api: Aws, entry: dict[str, Any], cluster: str) -> Subnet:
    name, vpc = entry["SubnetId"], entry["VpcId"]
    table = _route_table(api, vpc, name)
    return Subnet(
        name,
        vpc,
        entry["AvailabilityZone"],
        entry.get("CidrBlock", ""),
        entry["AvailableIpAddressCount"] + _own_addresses(api, name, cluster),
        _way_out(api, table),
        _is_filtered(api, name),
        table["RouteTableId"],
        bool(entry.get("MapPublicIpOnLaunch")),
    )


def _blocks(found: dict[str, Any]) -> tuple[str, ...]:
    """Return the VPC's IPv4 blocks: its first one, and those that were added."""
    added = found.get("CidrBlockAssociationSet", [])
    more = (one["CidrBlock"] for one in added if one["CidrBlockState"]["State"] == "associated")
    return tuple(dict.fromkeys((found["CidrBlock"], *more)))


def _own_addresses(api: Aws, subnet: str, cluster: str) -> int:
    """Return how many addresses the cluster of this name has there already, by its security groups' names."""
    own = tuple(
        f"{cluster}-{group}-" for group in ("NodeSecurityGroup", "StorageSecurityGroup", "EndpointSecurityGroup")
    )
    interfaces = api.pages(
        "ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=_where("subnet-id", subnet)
    )
    return sum(
        len(one["PrivateIpAddresses"])
        for one in interfaces
        if any(group["GroupName"].startswith(own) for group in one["Groups"])
    )


def _has(api: Aws, vpc: str, attribute: str) -> bool:
    named = attribute[0].lower() + attribute[1:]
    return api.call("ec2", "describe_vpc_attribute", VpcId=vpc, Attribute=named)[attribute]["Value"]


def _route_table(api: Aws, vpc: str, subnet: str) -> dict[str, Any]:
    """Return the subnet's own route table, or else the VPC's main one."""
    tables = list(api.pages("ec2", "describe_route_tables", "RouteTables", Filters=_where("vpc-id", vpc)))
    own = (table for table in tables if any(one.get("SubnetId") == subnet for one in table["Associations"]))
    main = (table for table in tables if any(one.get("Main") for one in table["Associations"]))
    return next(own, None) or next(main)


def _way_out(api: Aws, table: dict[str, Any]) -> str:
    """Return what the default route leads to; "" if there is none, or if its target is gone (aws-behaviour 2.42)."""
    routes = [route for route in table["Routes"] if route.get("DestinationCidrBlock") == _EVERYWHERE]
    if not routes or routes[0].get("State") == "blackhole":
        return ""
    if gateway := routes[0].get("NatGatewayId"):
        return NAT if _works(api, gateway) else ""
    return INTERNET if str(routes[0].get("GatewayId")).startswith("igw-") else OTHER


def _works(api: Aws, gateway: str) -> bool:
    """Whether a NAT gateway leads to the internet. One of a shared VPC can't be seen (docs/aws-behaviour.md 2.65).

    A list of ids, unlike a filter, fails there.
    """
    found = api.call("ec2", "describe_nat_gateways", Filter=_where("nat-gateway-id", gateway))["NatGateways"]
    return all(one["State"] == "available" and one.get("ConnectivityType", "public") == "public" for one in found)


def _is_filtered(api: Aws, subnet: str) -> bool:
    """Whether the subnet's network ACL has other rules than the one, each way, that allows everything."""
    found = api.pages("ec2", "describe_network_acls", "NetworkAcls", Filters=_where("association.subnet-id", subnet))
    rules = [entry for acl in found for entry in acl["Entries"] if entry.get("CidrBlock")]
    first = {rule["Egress"]: rule for rule in sorted(rules, key=lambda rule: -rule["RuleNumber"])}
    opens = ("allow", "-1", _EVERYWHERE)
    return any((rule["RuleAction"], rule["Protocol"], rule["CidrBlock"]) != opens for rule in first.values())


def _where(name: str, *values: str) -> list[dict[str, Any]]:
    return [{"Name": name, "Values": list(values)}]


def _endpoints(api: Aws, vpc: str, cluster: str) -> tuple[tuple[Endpoint, ...], int]:
    """Return the endpoints that are not the cluster's, and how many of the VPC count against the quota.

    Interface endpoints without private DNS serve nobody who calls a service by its name.
    """
    entries = [one for one in _described_endpoints(api, vpc) if not tags.is_of(one, cluster)]
    named = [one for one in entries if one["VpcEndpointType"] == "Interface" and _takes_over(one)]
    zones = _zones(api, named)
    rules = _rules(api, named)
    found = [_gateway(one) for one in entries if one["VpcEndpointType"] == "Gateway"]
    found += [_interface(one, zones, rules) for one in named]
    return tuple(found), sum(one["VpcEndpointType"] != "Gateway" for one in entries)


def _serving(api: Aws, vpc: str, tables: Iterable[str]) -> list[str]:
    """Return the services that have an endpoint, whoever made it, for nodes in subnets with all these route tables."""
    entries, wanted = list(_described_endpoints(api, vpc)), {*tables}
    interfaces = {_service(one) for one in entries if one["VpcEndpointType"] == "Interface" and _takes_over(one)}
    routed: dict[str, set[str]] = {}
    for one in entries:
        routed.setdefault(_service(one), set()).update(one.get("RouteTableIds", []))
    return sorted(interfaces | {service for service, there in routed.items() if wanted <= there})


def _described_endpoints(api: Aws, vpc: str) -> Iterator[dict[str, Any]]:
    there = api.pages("ec2", "describe_vpc_endpoints", "VpcEndpoints", Filters=_where("vpc-id", vpc))
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
    found = api.pages("ec2", "describe_subnets", "Subnets", Filters=_where("subnet-id", *names)) if names else ()
    return {one["SubnetId"]: one["AvailabilityZone"] for one in found}


def _rules(api: Aws, entries: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rules of the endpoints' security groups."""
    names = sorted({group["GroupId"] for one in entries for group in one["Groups"]})
    where = {"Filters": _where("group-id", *names)}
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
