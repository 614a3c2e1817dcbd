"""EC2's networks where moto's records differ from them: default groups and VPCs, NAT gateways, instances' groups."""

from __future__ import annotations

from typing import Any

from moto.ec2.models import EC2Backend
from moto.ec2.models.instances import Instance
from moto.ec2.models.nat_gateways import NatGateway
from moto.ec2.models.security_groups import SecurityGroup
from moto.ec2.models.vpcs import VPC

PATCHED = (
    "moto.ec2.models.EC2Backend.create_security_group",
    "moto.ec2.models.EC2Backend.create_default_vpc",
    "moto.ec2.models.EC2Backend.delete_nat_gateway",
    "moto.ec2.models.EC2Backend.modify_instance_security_groups",
    "moto.ec2.models.EC2Backend.modify_network_interface_attribute",
)

_create_group = EC2Backend.create_security_group
_create_default_vpc = EC2Backend.create_default_vpc
_delete_gateway = EC2Backend.delete_nat_gateway
_modify_instance = EC2Backend.modify_instance_security_groups
_modify_interface = EC2Backend.modify_network_interface_attribute


def install() -> None:
    """Correct moto's EC2."""
    EC2Backend.create_security_group = _create_security_group
    EC2Backend.create_default_vpc = _create_vpc_with_way_out
    EC2Backend.delete_nat_gateway = _delete_nat_gateway
    EC2Backend.modify_instance_security_groups = _modify_instance_security_groups
    EC2Backend.modify_network_interface_attribute = _modify_network_interface_attribute


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
