"""AWS::EC2 types that make up a network: VPC, subnets, gateways, routes, addresses."""

from __future__ import annotations

import json
import zlib
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends

from localcloud.cloudformation.errors import ResourceFailed
from localcloud.cloudformation.resources.registry import Made, Request, resource
from localcloud.ec2.zones import ordinary
from localcloud.storage import file_systems


def ec2(request: Request) -> Any:
    """Return moto's EC2 backend for the stack's account and region."""
    return ec2_backends[request.context.account][request.region]


def truth(value: Any) -> bool:
    """Parse a boolean as templates write it: true, "true" or "True"."""
    return str(value).lower() == "true"


DNS = (("EnableDnsSupport", "enable_dns_support"), ("EnableDnsHostnames", "enable_dns_hostnames"))


def _delete_vpc(request: Request, physical_id: str) -> None:
    backend = ec2(request)
    if physical_id not in backend.vpcs:
        return
    _refuse_while(f"The vpc '{physical_id}'", backend.enis.values(), lambda eni: eni.subnet.vpc_id == physical_id)
    _refuse_while(f"The vpc '{physical_id}'", backend.vpc_end_points.values(), lambda one: one.vpc_id == physical_id)
    for group in list(backend.groups[physical_id].values()):
        if not group.is_default:
            raise ResourceFailed(f"The vpc '{physical_id}' has dependencies and cannot be deleted. (Service: Ec2)")
    for acl in [acl for acl in backend.network_acls.values() if acl.vpc_id == physical_id]:
        del backend.network_acls[acl.id]
    backend.delete_vpc(physical_id)
    request.context.close_vpc(physical_id)
    file_systems.remove_exports(request.context.state, physical_id)
    request.context.forget_mounts(physical_id)


def _refuse_while(what: str, things: Any, depends: Any) -> None:
    # EC2 answers DependencyViolation; moto would delete the network of a running instance.
    if any(depends(thing) for thing in list(things)):
        raise ResourceFailed(f"{what} has dependencies and cannot be deleted. (Service: Ec2, Status Code: 400)")


@resource("AWS::EC2::VPC", _delete_vpc, "VpcId CidrBlock CidrBlockAssociations DefaultNetworkAcl DefaultSecurityGroup")
def _vpc(request: Request) -> Made:
    properties, backend = request.properties, ec2(request)
    vpc = backend.create_vpc(
        properties.get("CidrBlock", ""), properties.get("InstanceTenancy", "default"), tags=request.tag_list()
    )
    for key, attribute in DNS:
        if key in properties:
            backend.modify_vpc_attribute(vpc.id, attribute, truth(properties[key]))
    group = backend.get_security_group_from_name("default", vpc_id=vpc.id)
    acl = next((acl.id for acl in backend.network_acls.values() if acl.vpc_id == vpc.id), "")
    blocks = [block["association_id"] for block in vpc.get_cidr_block_association_set()]
    return Made(
        vpc.id,
        {
            "VpcId": vpc.id,
            "CidrBlock": vpc.cidr_block,
            "CidrBlockAssociations": blocks,
            "DefaultNetworkAcl": acl,
            "DefaultSecurityGroup": group.id,
        },
    )


def _delete_subnet(request: Request, physical_id: str) -> None:
    backend = ec2(request)
    if not any(physical_id in subnets for subnets in backend.subnets.values()):
        return
    backend.delete_subnet(physical_id)


@resource(
    "AWS::EC2::Subnet",
    _delete_subnet,
    "SubnetId VpcId AvailabilityZone AvailabilityZoneId CidrBlock NetworkAclAssociationId",
)
def _subnet(request: Request) -> Made:
    properties, backend = request.properties, ec2(request)
    subnet = backend.create_subnet(
        properties["VpcId"],
        properties.get("CidrBlock", ""),
        availability_zone=properties.get("AvailabilityZone") or _any_zone(request),
        tags={"subnet": request.tag_map()},
    )
    # moto makes the first subnet of a zone the default one; in AWS only a default VPC has default subnets.
    subnet.default_for_az = False
    subnet.map_public_ip_on_launch = truth(properties.get("MapPublicIpOnLaunch", False))
    return Made(
        subnet.id,
        {
            "SubnetId": subnet.id,
            "VpcId": subnet.vpc_id,
            "AvailabilityZone": subnet.availability_zone,
            "AvailabilityZoneId": subnet.availability_zone_id,
            "CidrBlock": subnet.cidr_block,
            "NetworkAclAssociationId": f"aclassoc-{subnet.id[7:]}",
        },
    )


def _any_zone(request: Request) -> str:
    """Return the zone of a subnet that names none. AWS chooses; here subnets with other addresses get another zone."""
    # Zones e and f of us-east-1 lack most types.
    zones = ordinary(ec2(request).describe_availability_zones())[:4]
    return zones[-1 - zlib.crc32(str(request.properties.get("CidrBlock")).encode()) % len(zones)]


def _delete_internet_gateway(request: Request, physical_id: str) -> None:
    if physical_id in ec2(request).internet_gateways:
        ec2(request).delete_internet_gateway(physical_id)


@resource("AWS::EC2::InternetGateway", _delete_internet_gateway, "InternetGatewayId")
def _internet_gateway(request: Request) -> Made:
    gateway = ec2(request).create_internet_gateway(tags=request.tag_list())
    return Made(gateway.id, {"InternetGatewayId": gateway.id})


def _detach_gateway(request: Request, physical_id: str) -> None:  # noqa: ARG001
    properties, backend = request.properties, ec2(request)
    gateway = backend.internet_gateways.get(properties["InternetGatewayId"])
    if gateway and gateway.vpc and gateway.vpc.id == properties["VpcId"]:
        backend.detach_internet_gateway(gateway.id, properties["VpcId"])


@resource("AWS::EC2::VPCGatewayAttachment", _detach_gateway, "AttachmentType")
def _gateway_attachment(request: Request) -> Made:
    properties = request.properties
    if "InternetGatewayId" not in properties:
        raise ResourceFailed("The local cloud attaches internet gateways only: InternetGatewayId is missing")
    ec2(request).attach_internet_gateway(properties["InternetGatewayId"], properties["VpcId"])
    return Made(f"IGW|{properties['VpcId']}", {"AttachmentType": "IGW"})


def _delete_route_table(request: Request, physical_id: str) -> None:
    if physical_id in ec2(request).route_tables:
        ec2(request).delete_route_table(physical_id)


@resource("AWS::EC2::RouteTable", _delete_route_table, "RouteTableId")
def _route_table(request: Request) -> Made:
    table = ec2(request).create_route_table(request.properties["VpcId"], tags=request.tag_list())
    return Made(table.id, {"RouteTableId": table.id})


def _delete_route(request: Request, physical_id: str) -> None:
    table, _, destination = physical_id.partition("|")
    try:
        ec2(request).delete_route(table, destination)
    except EC2ClientError as error:
        if "NotFound" not in str(error.code):
            raise


@resource("AWS::EC2::Route", _delete_route, "CidrBlock")
def _route(request: Request) -> Made:
    properties = request.properties
    destination = properties.get("DestinationCidrBlock", "")
    ec2(request).create_route(
        properties["RouteTableId"],
        destination,
        gateway_id=properties.get("GatewayId"),
        nat_gateway_id=properties.get("NatGatewayId"),
        instance_id=properties.get("InstanceId"),
        interface_id=properties.get("NetworkInterfaceId"),
    )
    return Made(f"{properties['RouteTableId']}|{destination}", {"CidrBlock": destination})


def _disassociate_route_table(request: Request, physical_id: str) -> None:
    backend = ec2(request)
    if any(physical_id in table._associations for table in backend.route_tables.values()):
        backend.disassociate_route_table(physical_id)


@resource("AWS::EC2::SubnetRouteTableAssociation", _disassociate_route_table, "Id")
def _subnet_route_table(request: Request) -> Made:
    properties = request.properties
    association = ec2(request).associate_route_table(properties["RouteTableId"], subnet_id=properties["SubnetId"])
    return Made(association, {"Id": association})


def _release_address(request: Request, physical_id: str) -> None:
    found = next((address for address in ec2(request).addresses if address.public_ip == physical_id), None)
    if found is not None:
        ec2(request).release_address(address=physical_id)


@resource("AWS::EC2::EIP", _release_address, "AllocationId PublicIp")
def _elastic_ip(request: Request) -> Made:
    backend = ec2(request)
    address = backend.allocate_address(request.properties.get("Domain", "vpc"), tags=request.tag_map())
    if request.properties.get("InstanceId"):
        instance = backend.get_instance(request.properties["InstanceId"])
        backend.associate_address(instance=instance, eni=instance.nics[0], address=address.public_ip)
    return Made(address.public_ip, {"AllocationId": address.allocation_id, "PublicIp": address.public_ip})


def _delete_nat_gateway(request: Request, physical_id: str) -> None:
    backend = ec2(request)
    if physical_id in backend.nat_gateways:
        backend.delete_nat_gateway(physical_id)
        backend.nat_gateways.pop(physical_id)


@resource("AWS::EC2::NatGateway", _delete_nat_gateway, "NatGatewayId EniId")
def _nat_gateway(request: Request) -> Made:
    properties = request.properties
    gateway = ec2(request).create_nat_gateway(
        properties["SubnetId"],
        properties.get("AllocationId"),
        tags=request.tag_map(),
        connectivity_type=properties.get("ConnectivityType", "public"),
    )
    return Made(gateway.id, {"NatGatewayId": gateway.id, "EniId": gateway._eni.id})


OPEN_POLICY = {"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*"}]}
"""AWS's own policy of an endpoint."""


def _delete_endpoint(request: Request, physical_id: str) -> None:
    ec2(request).delete_vpc_endpoints([physical_id])


@resource("AWS::EC2::VPCEndpoint", _delete_endpoint, "Id CreationTimestamp NetworkInterfaceIds DnsEntries")
def _endpoint(request: Request) -> Made:
    """Make a gateway endpoint, with routes to the service's prefix list, or an interface endpoint."""
    properties = request.properties
    policy = properties.get("PolicyDocument")
    made = ec2(request).create_vpc_endpoint(
        properties["VpcId"],
        properties.get("ServiceName", ""),
        properties.get("VpcEndpointType", "Gateway"),
        json.dumps(policy) if isinstance(policy, dict) else policy,
        list(properties.get("RouteTableIds", [])),
        list(properties.get("SubnetIds", [])),
        security_group_ids=list(properties.get("SecurityGroupIds", [])),
        tags=request.tag_map(),
        # By default the API takes over the service's name, and CloudFormation does not.
        private_dns_enabled=truth(properties.get("PrivateDnsEnabled", False)),
    )
    names = [f"{entry['hosted_zone_id']}:{entry['dns_name']}" for entry in made.dns_entries or []]
    created = made.creation_timestamp.isoformat()
    interfaces = list(made.network_interface_ids)
    values = {"Id": made.id, "CreationTimestamp": created, "NetworkInterfaceIds": interfaces, "DnsEntries": names}
    return Made(made.id, values)
