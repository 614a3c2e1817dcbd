"""EC2's networks where moto's records differ from them: default groups and VPCs, NAT gateways, instances' groups."""

from __future__ import annotations

import ipaddress
import itertools
from typing import Any

from moto.ec2.models import EC2Backend, elastic_ip_addresses, elastic_network_interfaces
from moto.ec2.models.instances import Instance
from moto.ec2.models.nat_gateways import NatGateway
from moto.ec2.models.security_groups import SecurityGroup
from moto.ec2.models.vpcs import VPC, VPCEndPoint

from localcloud.api import partitions
from localcloud.nodes.machine import PUBLIC_NETWORK

PATCHED = (
    "moto.ec2.models.EC2Backend.create_security_group",
    "moto.ec2.models.EC2Backend.create_default_vpc",
    "moto.ec2.models.EC2Backend.delete_nat_gateway",
    "moto.ec2.models.EC2Backend.create_vpc_endpoint",
    "moto.ec2.models.EC2Backend.modify_vpc_endpoint",
    "moto.ec2.models.EC2Backend.modify_instance_security_groups",
    "moto.ec2.models.EC2Backend.modify_network_interface_attribute",
    "moto.ec2.models.instances.Instance.public_dns_name",
    "moto.ec2.models.elastic_ip_addresses.random_ip",
    "moto.ec2.models.elastic_network_interfaces.random_public_ip",
)

_create_group = EC2Backend.create_security_group
_create_default_vpc = EC2Backend.create_default_vpc
_delete_gateway = EC2Backend.delete_nat_gateway
_create_endpoint = EC2Backend.create_vpc_endpoint
_modify_endpoint = EC2Backend.modify_vpc_endpoint
_modify_instance = EC2Backend.modify_instance_security_groups
_modify_interface = EC2Backend.modify_network_interface_attribute


def install() -> None:
    """Correct moto's EC2."""
    EC2Backend.create_security_group = _create_security_group
    EC2Backend.create_default_vpc = _create_vpc_with_way_out
    EC2Backend.delete_nat_gateway = _delete_nat_gateway
    EC2Backend.create_vpc_endpoint = _create_vpc_endpoint
    EC2Backend.modify_vpc_endpoint = _modify_vpc_endpoint
    EC2Backend.modify_instance_security_groups = _modify_instance_security_groups
    EC2Backend.modify_network_interface_attribute = _modify_network_interface_attribute
    for module, name in ((elastic_ip_addresses, "random_ip"), (elastic_network_interfaces, "random_public_ip")):
        setattr(module, name, public_address)
    Instance.public_dns_name = property(_public_dns_name)  # pyright: ignore[reportAttributeAccessIssue]


def _create_security_group(self: EC2Backend, *args: Any, **kwargs: Any) -> SecurityGroup:
    """Let the members of a default group reach each other (docs/aws-behaviour.md 2.43)."""
    group = _create_group(self, *args, **kwargs)
    if group.is_default:
        own = [{"GroupId": group.id}]
        self.authorize_security_group_ingress(group.id, "-1", "-1", "-1", [], source_groups=own, vpc_id=group.vpc_id)
    return group


def _create_vpc_with_way_out(self: EC2Backend) -> VPC:
    """Give the default VPC an internet gateway and a route to it (docs/aws-behaviour.md 2.43)."""
    vpc = _create_default_vpc(self)
    gateway = self.create_internet_gateway()
    self.attach_internet_gateway(gateway.id, vpc.id)
    table = next(table for table in self.route_tables.values() if table.vpc_id == vpc.id)
    self.create_route(table.id, "0.0.0.0/0", gateway_id=gateway.id)
    return vpc


def _delete_nat_gateway(self: EC2Backend, nat_gateway_id: str) -> NatGateway:
    """Give up the gateway's interface and the association of its address, which moto leaves behind."""
    gateway = _delete_gateway(self, nat_gateway_id)
    for address in self.addresses:
        if address.eni is gateway._eni:
            self.disassociate_address(association_id=address.association_id)
    self.enis.pop(gateway._eni.id, None)
    return gateway


def _create_vpc_endpoint(self: EC2Backend, *args: Any, **kwargs: Any) -> VPCEndPoint:
    """Give an interface endpoint addresses of its subnets, and its groups, or the VPC's default one.

    AWS takes over the service's name unless the caller refuses that, also where the request leaves it out. An endpoint
    without a type is a gateway.
    """
    made = _create_endpoint(self, *args, **kwargs)
    made.vpc_endpoint_type = made.vpc_endpoint_type or "Gateway"
    for eni in _interfaces(self, made):
        address = eni.subnet.get_available_subnet_ip(eni)
        eni.private_ip_address = address
        eni.private_ip_addresses = [{"Primary": True, "PrivateIpAddress": address}]
    if made.network_interface_ids:
        default: Any = self.get_default_security_group(made.vpc_id)
        made.security_group_ids = made.security_group_ids or [default.id]
        made.private_dns_enabled = made.private_dns_enabled is not False
    _give_groups(self, made)
    return made


def _modify_vpc_endpoint(self: EC2Backend, vpc_id: str, *args: Any, **kwargs: Any) -> None:
    """Change the groups of the endpoint's interfaces, too, and its routes."""
    endpoint: Any = self.vpc_end_points[vpc_id]
    before = set(endpoint.route_table_ids or ())
    _modify_endpoint(self, vpc_id, *args, **kwargs)
    _give_groups(self, endpoint)
    after, prefixes = set(endpoint.route_table_ids or ()), endpoint.destination_prefix_list_id
    for table in after - before:
        self.create_route(table, None, gateway_id=vpc_id, destination_prefix_list_id=prefixes)
    for table in before - after:
        self.delete_route(table, prefixes)


def _interfaces(backend: EC2Backend, endpoint: VPCEndPoint) -> list[Any]:
    return [backend.enis[one] for one in endpoint.network_interface_ids or () if one in backend.enis]


def _give_groups(backend: EC2Backend, endpoint: VPCEndPoint) -> None:
    groups = [backend.get_security_group_from_id(one) for one in endpoint.security_group_ids]
    for eni in _interfaces(backend, endpoint):
        eni._group_set = list(groups)


def _modify_instance_security_groups(self: EC2Backend, instance_id: str, new_group_id_list: list[str]) -> Instance:
    """Replace the groups of the primary interface, which are the instance's."""
    instance = _modify_instance(self, instance_id, new_group_id_list)
    instance.nics[0]._group_set = list(instance.security_groups)
    return instance


def _modify_network_interface_attribute(
    self: EC2Backend, eni_id: str, group_ids: list[str], *args: Any, **kwargs: Any
) -> None:
    """Replace an interface's groups, also those that its instance has from it."""
    _modify_interface(self, eni_id, group_ids, *args, **kwargs)
    interface = self.get_network_interface(eni_id)
    if group_ids and interface.instance is not None:
        interface.instance.security_groups = list(interface._group_set)


def _public_dns_name(self: Instance) -> str:
    """Return the name of its public address; "" unless both DNS attributes of the VPC are on (2.76)."""
    vpc: Any = self.ec2_backend.vpcs.get(self.vpc_id or "")
    attributes = (vpc.enable_dns_support, vpc.enable_dns_hostnames) if vpc else ("",)
    if not self.public_ip or any(str(attribute).lower() != "true" for attribute in attributes):
        return ""
    domain = "compute-1" if self.region_name == "us-east-1" else f"{self.region_name}.compute"
    return f"ec2-{self.public_ip.replace('.', '-')}.{domain}.{partitions.domain(self.region_name)}"


# Without addresses that end in 0 and 255. A step that shares no divisor with their number leads through all of them.
_HOSTS_OF_BLOCK, _STEP = 254, 40_503
_public = ipaddress.ip_network(PUBLIC_NETWORK)
_numbers = itertools.count(1)


def public_address() -> str:
    """Return the next public address, which seems to have nothing to do with the one before, as on EC2.

    moto's are those of customers of AWS, to which programs on nodes would connect, and of whoever asks (127.0.0.0/8).
    """
    blocks = _public.num_addresses // 256
    block, host = divmod(next(_numbers) * _STEP % (blocks * _HOSTS_OF_BLOCK), _HOSTS_OF_BLOCK)
    return str(_public[block * 256 + host + 1])
