"""The subnets that a spec names, with what decides whether nodes can run there, as EC2 describes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from phalanx.aws import endpoints_of_vpc
from phalanx.errors import SpecError
from phalanx.plan import vpc_endpoints
from phalanx.plan.existing_vpc import INTERNET, NAT, OTHER, ExistingVpc, Subnet
from phalanx.spec.spec import ClusterSpec

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_EVERYWHERE = "0.0.0.0/0"


def find(api: Aws, spec: ClusterSpec) -> ExistingVpc | None:
    """Return the VPC of the spec's subnets; None if it names none. Raises SpecError if one does not exist."""
    if not spec.subnets:
        return None
    described = _described(api, spec.subnets)
    head, workers = (_subnet(api, described[name], spec.name) for name in spec.subnets)
    found, number = endpoints_of_vpc.find(api, head.vpc, spec.name)
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


def services(api: Aws, vpc: str, subnets: tuple[str, ...]) -> list[str] | None:
    """Return the services that have endpoints for nodes in these subnets; None if all of them have a way out."""
    tables = [_route_table(api, vpc, subnet) for subnet in subnets]
    closed = [table["RouteTableId"] for table in tables if not _way_out(api, table)]
    return endpoints_of_vpc.serving(api, vpc, closed) if closed else None


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
