"""EC2's networks: subnets, gateways, route tables, interfaces and addresses that are in use or in another VPC.

Source: AWS's page of EC2's error codes; tests/data/refusals.yaml has a request for each.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

from moto.ec2.exceptions import DependencyViolationError, EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.responses.elastic_network_interfaces import ElasticNetworkInterfaces
from moto.ec2.responses.internet_gateways import InternetGateways
from moto.ec2.responses.route_tables import RouteTables

from localcloud.api.refusals.before import Given, before, canonical

_SMALLEST_SUBNET = 28


@before(EC2Backend, "create_subnet")
def _a_subnet_is_too_small_or_in_no_zone(backend: Any, given: Given) -> None:
    zones = backend.describe_availability_zones()
    for name, asked, of in (
        ("availabilityZone", given.availability_zone, "name"),
        ("availabilityZoneId", given.availability_zone_id, "zone_id"),
    ):
        known = [getattr(zone, of) for zone in zones]
        if asked and asked not in known:
            only = f"Subnets can currently only be created in the following availability zones: {', '.join(known)}."
            raise EC2ClientError("InvalidParameterValue", f"Value ({asked}) for parameter {name} is invalid. {only}")
    if _prefix(given.cidr_block) > _SMALLEST_SUBNET:
        raise EC2ClientError("InvalidSubnet.Range", f"The CIDR '{given.cidr_block}' is invalid.")


def _prefix(block: str) -> int:
    """Return the length of a network's prefix; 0 for a text that moto is going to refuse."""
    try:
        return ipaddress.ip_network(block, strict=False).prefixlen
    except ValueError:
        return 0


@before(EC2Backend, "create_vpc", "create_subnet", "create_network_acl_entry", "replace_network_acl_entry")
def _a_network_is_in_canonical_form(_backend: Any, given: Given) -> None:
    given["cidr_block"] = canonical(given.cidr_block)


@before(EC2Backend, "create_route", "replace_route", "delete_route")
def _a_destination_is_in_canonical_form(_backend: Any, given: Given) -> None:
    given["destination_cidr_block"] = canonical(given.destination_cidr_block)


@before(EC2Backend, "describe_availability_zones")
def _a_zone_is_unknown(backend: Any, given: Given) -> None:
    zones = backend.zones.get(backend.region_name, [])
    for asked, known in ((given.zone_names, "name"), (given.zone_ids, "zone_id")):
        if unknown := set(asked or ()) - {getattr(zone, known) for zone in zones}:
            raise EC2ClientError("InvalidParameterValue", f"Invalid availability zone: [{min(unknown)}]")


@before(EC2Backend, "delete_subnet")
def _a_subnet_is_in_use(backend: Any, given: Given) -> None:
    if any(interface.subnet.id == given.subnet_id for interface in list(backend.enis.values())):
        raise DependencyViolationError(f"The subnet '{given.subnet_id}' has dependencies and cannot be deleted.")


@before(EC2Backend, "attach_internet_gateway")
def _a_vpc_has_a_gateway(backend: Any, given: Given) -> None:
    backend.get_internet_gateway(given.internet_gateway_id)
    backend.get_vpc(given.vpc_id)
    if any(gateway.vpc and gateway.vpc.id == given.vpc_id for gateway in list(backend.internet_gateways.values())):
        own = backend.internet_gateways[given.internet_gateway_id].vpc
        if own is None:
            text = f"Network {given.vpc_id} already has an internet gateway attached"
            raise EC2ClientError("InvalidParameterValue", text)
        text = f"resource {given.internet_gateway_id} is already attached to network {own.id}"
        raise EC2ClientError("Resource.AlreadyAssociated", text)


@before(InternetGateways, "detach_internet_gateway")
def _a_gateway_has_public_addresses(response: Any, _given: Given) -> None:
    """Refuse the call; a stack's deletion waits for the addresses, and is not affected."""
    backend, vpc_id = response.ec2_backend, response._get_param("VpcId")
    gateway = backend.get_internet_gateway(response._get_param("InternetGatewayId"))
    if gateway.vpc and gateway.vpc.id == vpc_id and _has_public_address(backend, vpc_id):
        raise DependencyViolationError(
            f"Network {vpc_id} has some mapped public address(es)."
            " Please unmap those public address(es) before detaching the gateway."
        )


def _has_public_address(backend: Any, vpc_id: str) -> bool:
    interfaces = [one for one in list(backend.enis.values()) if one.subnet.vpc_id == vpc_id]
    mapped = {id(address.eni) for address in backend.addresses if address.eni is not None}
    return any(id(interface) in mapped or interface.public_ip for interface in interfaces)


@before(RouteTables, "delete_route_table")
def _a_route_table_is_the_main_one(response: Any, _given: Given) -> None:
    table = response.ec2_backend.route_tables.get(response._get_param("RouteTableId"))
    if table is not None and table.main_association_id:
        raise DependencyViolationError(f"The routeTable '{table.id}' has dependencies and cannot be deleted.")


@before(EC2Backend, "associate_route_table")
def _a_subnet_has_a_route_table_or_another_vpc(backend: Any, given: Given) -> None:
    table = backend.get_route_table(given.route_table_id)
    if not given.subnet_id:
        return
    if backend.get_subnet(given.subnet_id).vpc_id != table.vpc_id:
        belong = f"Route table {table.id} and subnet {given.subnet_id} belong to different networks"
        raise EC2ClientError("InvalidParameterValue", belong)
    others = [other for other in list(backend.route_tables.values()) if other is not table]
    if any(given.subnet_id in other._associations.values() for other in others):
        conflict = f"the specified association for route table {table.id} conflicts with an existing association"
        raise EC2ClientError("Resource.AlreadyAssociated", conflict)


@before(EC2Backend, "create_route", "replace_route")
def _a_gateway_is_elsewhere(backend: Any, given: Given) -> None:
    gateway_id = str(given.gateway_id or "")
    if not gateway_id.startswith("igw-"):
        return
    gateway = backend.internet_gateways.get(gateway_id)
    if gateway is None:
        raise EC2ClientError("InvalidGatewayID.NotFound", f"The gateway ID '{gateway_id}' does not exist")
    table = backend.get_route_table(given.route_table_id)
    if gateway.vpc is None or gateway.vpc.id != table.vpc_id:
        belong = f"route table {table.id} and network gateway {gateway_id} belong to different networks"
        raise EC2ClientError("InvalidParameterValue", belong)


@before(EC2Backend, "create_route", "replace_route")
def _a_nat_gateway_is_gone(backend: Any, given: Given) -> None:
    if given.nat_gateway_id and given.nat_gateway_id not in backend.nat_gateways:
        text = f"The NAT gateway ID '{given.nat_gateway_id}' does not exist"
        raise EC2ClientError("InvalidNatGatewayID.NotFound", text)


@before(EC2Backend, "create_nat_gateway")
def _a_nat_gateway_lacks_an_address(backend: Any, given: Given) -> None:
    backend.get_subnet(given.subnet_id)
    if given.allocation_id:
        backend.address_by_allocation([given.allocation_id])
    elif given.connectivity_type != "private":
        raise EC2ClientError("MissingParameter", "The request must contain the parameter AllocationId")


@before(EC2Backend, "delete_nat_gateway")
def _a_nat_gateway_is_unknown(backend: Any, given: Given) -> None:
    if given.nat_gateway_id not in backend.nat_gateways:
        raise EC2ClientError("NatGatewayNotFound", f"The Nat Gateway {given.nat_gateway_id} was not found")


# moto's list → its argument, where it keeps what exists, and EC2's code for an id of nothing that exists.
_LISTS = {
    "describe_network_acls": ("network_acl_ids", "network_acls", "InvalidNetworkAclID.NotFound"),
    "describe_launch_templates": ("template_ids", "launch_templates", "InvalidLaunchTemplateId.NotFound"),
    "describe_spot_instance_requests": (
        "spot_instance_ids",
        "spot_instance_requests",
        "InvalidSpotInstanceRequestID.NotFound",
    ),
    "describe_vpc_peering_connections": ("vpc_peering_ids", "vpc_pcxs", "InvalidVpcPeeringConnectionID.NotFound"),
}


def _unknown_in(argument: str, kept: str, code: str) -> Callable[[Any, Given], None]:
    """Return the check of a list, which moto answers with an empty one or with another code."""

    def check(backend: Any, given: Given) -> None:
        for one in given.get(argument) or ():
            if one not in getattr(backend, kept):
                raise EC2ClientError(code, f"The ID '{one}' does not exist")

    return check


for _method, _about in _LISTS.items():
    before(EC2Backend, _method)(_unknown_in(*_about))


@before(EC2Backend, "create_vpc_endpoint")
def _a_service_is_unknown(backend: Any, given: Given) -> None:
    backend.get_vpc(given.vpc_id)
    last = str(given.service_name).rpartition(".")[2]
    if not given.service_name.startswith(f"com.amazonaws.{backend.region_name}.") or last not in _SERVICES:
        text = f"The Vpc Endpoint Service '{given.service_name}' does not exist"
        raise EC2ClientError("InvalidServiceName", text)


# The services whose endpoints a VPC of the local cloud may have.
_WITH_GATEWAYS = frozenset(("dynamodb", "s3"))
_SERVICES = _WITH_GATEWAYS | frozenset(
    (
        *("autoscaling", "cloudformation", "ec2", "ec2messages", "elasticfilesystem", "elasticmapreduce"),
        *("guardduty-data", "lambda", "logs", "monitoring", "sns", "sqs", "ssm", "ssmmessages", "sts"),
    )
)


@before(EC2Backend, "create_vpc_endpoint")
def _an_endpoint_is_of_another_kind(backend: Any, given: Given) -> None:
    """Refuse what contradicts the endpoint's type (docs/aws-behaviour.md 2.53)."""
    kind, service = str(given.endpoint_type or "Gateway"), str(given.service_name)
    if kind not in ("Gateway", "Interface"):
        raise EC2ClientError("UnsupportedOperation", f"The local cloud makes no endpoints of the type {kind}.")
    if kind == "Gateway" and service.rpartition(".")[2] not in _WITH_GATEWAYS:
        text = f"Endpoint type (Gateway) does not match available service types ([Interface]) of {service}."
        raise EC2ClientError("InvalidParameter", text)
    wrong = ("subnet_ids", "security_group_ids") if kind == "Gateway" else ("route_table_ids",)
    if any(given.get(one) for one in wrong):
        names = {"subnet_ids": "Subnets", "security_group_ids": "Security groups", "route_table_ids": "Route table IDs"}
        text = f"{names[next(one for one in wrong if given.get(one))]} are not supported for {kind} endpoints."
        raise EC2ClientError("InvalidParameter", text)
    for table in given.route_table_ids or ():
        _refuse_second_route(backend, backend.get_route_table(table), service)


def _refuse_second_route(backend: Any, table: Any, service: str) -> None:
    """Refuse a gateway endpoint for a route table that has one for the service (docs/aws-behaviour.md 2.57)."""
    for other in list(backend.vpc_end_points.values()):
        if other.service_name == service and table.id in (other.route_table_ids or ()):
            prefixes = other.destination_prefix_list_id
            text = f"route table {table.id} already has a route with destination-prefix-list-id {prefixes}"
            raise EC2ClientError("RouteAlreadyExists", text)


@before(EC2Backend, "modify_vpc_endpoint")
def _a_table_has_a_route(backend: Any, given: Given) -> None:
    changed = backend.vpc_end_points.get(given.vpc_id)
    for table in given.add_route_tables or () if changed else ():
        _refuse_second_route(backend, backend.get_route_table(table), changed.service_name)


@before(EC2Backend, "create_vpc_endpoint")
def _an_endpoint_is_not_in_its_network(backend: Any, given: Given) -> None:
    subnets = [backend.get_subnet(one) for one in given.subnet_ids or ()]
    if any(subnet.vpc_id != given.vpc_id for subnet in subnets):
        raise EC2ClientError("InvalidParameter", "The subnets must be in the VPC of the endpoint.")
    zones = [subnet.availability_zone for subnet in subnets]
    if len(set(zones)) < len(zones):
        text = f"Found another VPC endpoint subnet in the availability zone of {subnets[-1].id}."
        raise EC2ClientError("DuplicateSubnetsInSameZone", text)
    for name in given.security_group_ids or ():
        group = backend.get_security_group_from_id(name)
        if group is None or group.vpc_id != given.vpc_id:
            raise EC2ClientError("InvalidSecurityGroupID.NotFound", f"The security group '{name}' does not exist")


@before(EC2Backend, "create_vpc_endpoint")
def _a_private_name_is_impossible(backend: Any, given: Given) -> None:
    if str(given.endpoint_type) != "Interface" or given.private_dns_enabled is False:
        return
    vpc, service = backend.get_vpc(given.vpc_id), str(given.service_name)
    if not (_flag(vpc.enable_dns_support) and _flag(vpc.enable_dns_hostnames)):
        text = "Enabling private DNS requires both enableDnsSupport and enableDnsHostnames VPC attributes set to true"
        raise EC2ClientError("InvalidParameter", f"{text} for {vpc.id}")
    for other in list(backend.vpc_end_points.values()):
        if other.vpc_id == vpc.id and other.service_name == service and other.private_dns_enabled:
            name = f"{service.rpartition('.')[2]}.{backend.region_name}.amazonaws.com"
            text = "private-dns-enabled cannot be set because there is already a conflicting DNS domain for"
            raise EC2ClientError("InvalidParameter", f"{text} {name} in the VPC {vpc.id}")


def _flag(value: Any) -> bool:
    """Return a flag that moto keeps as it was sent: as a bool or a text."""
    return str(value).lower() == "true"


@before(ElasticNetworkInterfaces, "delete_network_interface")
def _an_interface_is_in_use(response: Any, _given: Given) -> None:
    interface = response.ec2_backend.enis.get(response._get_param("NetworkInterfaceId"))
    if interface is not None and (interface.instance is not None or interface.attachment_id):
        text = f"Network interface '{interface.id}' is currently in use."
        raise EC2ClientError("InvalidNetworkInterface.InUse", text)


@before(EC2Backend, "release_address")
def _an_address_is_in_use(backend: Any, given: Given) -> None:
    for address in list(backend.addresses):
        named = given.allocation_id in (None, address.allocation_id) and given.address in (None, address.public_ip)
        if named and (given.allocation_id or given.address) and address.association_id:
            raise EC2ClientError("InvalidIPAddress.InUse", f"Address {address.public_ip} is in use.")
