"""Reads a VPC's network from moto's EC2 and EFS, and from FSx's file systems."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable, Iterable
from typing import Any

from moto.ec2.models import EC2Backend, ec2_backends
from moto.ec2.models.instances import Instance
from moto.ec2.models.route_tables import RouteTable
from moto.efs.models import efs_backends

from localcloud.network.mount_targets import NFS_PORT
from localcloud.network.records import ALL, Acl, Dns, Endpoint, Entry, Group, Interface, Network, Route, Rule
from localcloud.storage import fsx
from localcloud.storage.fsx.records import LUSTRE_PORT

# nftables' names and numbers of protocols: nothing else may get into its input.
_PROTOCOL = re.compile(r"-1|tcp|udp|icmp|icmpv6|\d{1,3}")
_GROUP = re.compile(r"sg-[0-9a-f]+")
# Network ACLs name protocols by number.
_NUMBERS = {"1": "icmp", "6": "tcp", "17": "udp"}


_ANYTHING = Entry(True, Rule(ALL, networks=("0.0.0.0/0",)))


def network(account: str, vpc_id: str, instances: Iterable[Instance]) -> Network | None:
    """Return the network of a VPC with those of the `instances` that are in it; None if the VPC is gone."""
    for region, backend in list(ec2_backends[account].items()):
        if vpc_id in backend.vpcs:
            groups = {
                name: _group(backend, found)
                for name, found in list(backend.groups[vpc_id].items())
                if _GROUP.fullmatch(name)
            }
            routes = functools.cache(functools.partial(_routes, backend, vpc_id))
            table = functools.cache(functools.partial(_table, backend, vpc_id))
            acls = functools.cache(functools.partial(_acl, backend))
            members = [instance for instance in instances if instance.vpc_id == vpc_id]
            nodes = tuple(_node(instance, routes, acls, table) for instance in members)
            endpoints, targets = tuple(_endpoints(backend, vpc_id)), _mount_targets(account, region, backend, vpc_id)
            return Network(groups, nodes, targets, endpoints, _dns(backend.vpcs[vpc_id], members))
    return None


def _dns(vpc: Any, members: Iterable[Instance]) -> Dns:
    public = {name: member.private_ip or "" for member in members if (name := member.public_dns_name)}
    return Dns(_flag(vpc.enable_dns_support), _flag(vpc.enable_dns_hostnames), public)


def _group(backend: EC2Backend, found: Any) -> Group:
    return Group(tuple(_rules(backend, found.ingress_rules)), tuple(_rules(backend, found.egress_rules)))


def _rules(backend: EC2Backend, found: Iterable[Any]) -> Iterable[Rule]:
    """Yield the rules for IPv4 networks, prefix lists and groups; those for IPv6 allow nothing here."""
    for rule in list(found):
        if not _PROTOCOL.fullmatch(str(rule.ip_protocol)):
            continue
        networks = tuple(filter(None, [_block(rule.cidr_ipv4), *_prefixes(backend, rule.prefix_list_id)]))
        groups = tuple(filter(None, [rule.source_group.get("GroupId")]))
        yield Rule(rule.ip_protocol, *_range(rule), networks, groups)


def _range(rule: Any) -> tuple[int | None, int | None]:
    """Return the ports, or ICMP's type and code; -1 means all of them."""
    if rule.ip_protocol == ALL or rule.from_port is None or rule.from_port == -1:
        return None, None
    return int(rule.from_port), None if rule.to_port in (None, -1) else int(rule.to_port)


def _prefixes(backend: EC2Backend, list_id: str | None) -> list[str]:
    """Return the IPv4 networks of the newest version of a prefix list."""
    found: Any = backend.managed_prefix_lists.get(list_id or "")
    if found is None or found.address_family != "IPv4" or found.state == "delete-complete":
        return []
    # AWS's own lists have no versions.
    return [network for entry in found.entries.get(found.version or 1) or () if (network := _block(entry["Cidr"]))]


def _acl(backend: EC2Backend, subnet_id: str) -> Acl | None:
    """Return the network ACL of a subnet; None if it allows everything."""
    for found in list(backend.network_acls.values()):
        if any(association.subnet_id == subnet_id for association in found.associations):
            entries = sorted(found.entries, key=lambda entry: int(entry.rule_number))
            ingress, egress = (tuple(_entries(entries, leaves)) for leaves in (False, True))
            subnet = str(ipaddress.IPv4Network(backend.get_subnet(subnet_id).cidr_block))
            return None if ingress[:1] == egress[:1] == (_ANYTHING,) else Acl(subnet, ingress, egress)
    return None


def _entries(found: Iterable[Any], leaves: bool) -> Iterable[Entry]:
    """Yield the entries of a direction that are for IPv4."""
    for entry in found:
        protocol = _NUMBERS.get(entry.protocol) or str(entry.protocol)
        if _flag(entry.egress) == leaves and (network := _block(entry.cidr_block)) and _PROTOCOL.fullmatch(protocol):
            yield Entry(entry.rule_action == "allow", Rule(protocol, *_service(entry), (network,)))


def _flag(value: Any) -> bool:
    """Return a flag that moto keeps as it was sent: as a bool or a text."""
    return str(value).lower() == "true"


def _service(entry: Any) -> tuple[int | None, int | None]:
    """Return the ports of an entry, or ICMP's type and code."""
    first, last = entry.port_range_from, entry.port_range_to
    if entry.icmp_type is not None:
        first, last = entry.icmp_type, entry.icmp_code
    return _number(first), _number(last)


def _number(value: Any) -> int | None:
    return None if value in (None, "", -1, "-1") else int(value)


def _block(cidr: str | None) -> str | None:
    return str(ipaddress.IPv4Network(cidr, strict=False)) if cidr else None


def _node(
    instance: Instance,
    routes_of: Callable[[str], tuple[Route, ...]],
    acl_of: Callable[[str], Acl | None],
    table_of: Callable[[str], RouteTable | None],
) -> Interface:
    interface = instance.nics[0]
    table = table_of(interface.subnet.id)
    return Interface(
        instance.private_ip or "",
        tuple(sorted({group.id for group in interface.group_set})),
        routes_of(interface.subnet.id),
        public=bool(interface.public_ip),
        acl=acl_of(interface.subnet.id),
        table=table.id if table else "",
    )


def _endpoints(backend: EC2Backend, vpc_id: str) -> Iterable[Endpoint]:
    for found in list(backend.vpc_end_points.values()):
        if found.vpc_id != vpc_id:
            continue
        enis = [backend.enis[one] for one in found.network_interface_ids or () if one in backend.enis]
        yield Endpoint(
            found.service_name.rpartition(".")[2],
            found.policy_document,
            tuple(Interface(str(e.private_ip_address), tuple(sorted({g.id for g in e.group_set}))) for e in enis),
            bool(found.private_dns_enabled),
            tuple(found.route_table_ids or ()),
            tuple(_prefixes(backend, found.destination_prefix_list_id)),
        )


def _mount_targets(account: str, region: str, backend: EC2Backend, vpc_id: str) -> tuple[Interface, ...]:
    every = list(efs_backends[account][region].mount_targets_by_id.values())
    efs = (
        Interface(t.ip_address, _groups_of(backend, t), acl=_acl(backend, t.subnet_id), port=NFS_PORT)
        for t in every
        if t.vpc_id == vpc_id
    )
    lustre = (
        Interface(one.interface.address, one.interface.groups, acl=_acl(backend, one.subnet_id), port=LUSTRE_PORT)
        for one in fsx.in_vpc(vpc_id)
    )
    return (*efs, *lustre)


def _groups_of(backend: EC2Backend, target: Any) -> tuple[str, ...]:
    """Return a mount target's groups; like every interface, it has the VPC's default group if none was named."""
    default: Any = backend.get_default_security_group(target.vpc_id)
    return tuple(sorted(set(target.security_groups or [default.id])))


def _routes(backend: EC2Backend, vpc_id: str, subnet_id: str) -> tuple[Route, ...]:
    table = _table(backend, vpc_id, subnet_id)
    if table is None:
        return ()
    found = [route for route in table.routes if route.destination_cidr_block and not route.local]
    return tuple(
        Route(
            str(ipaddress.IPv4Network(route.destination_cidr_block)),
            to_internet=route.nat_gateway is None,
            works=_is_attached(backend, vpc_id, route.gateway) or _has_way_out(backend, vpc_id, route.nat_gateway),
        )
        for route in found
    )


def _table(backend: EC2Backend, vpc_id: str, subnet_id: str) -> RouteTable | None:
    """Return the subnet's route table: its own, or else the VPC's main one."""
    tables = [table for table in list(backend.route_tables.values()) if table.vpc_id == vpc_id]
    own = (table for table in tables if subnet_id in list(table._associations.values()))
    return next(own, None) or next((table for table in tables if table.main_association_id), None)


def _is_attached(backend: EC2Backend, vpc_id: str, gateway: Any) -> bool:
    """Whether it is an internet gateway that exists and is attached to the VPC."""
    known = backend.internet_gateways.get(gateway.id) if gateway else None
    return known is not None and known.vpc is not None and known.vpc.id == vpc_id


def _has_way_out(backend: EC2Backend, vpc_id: str, gateway: Any) -> bool:
    """Whether it is a NAT gateway that exists, with a public address, in a subnet with a route to the internet."""
    if gateway is None or gateway.id not in backend.nat_gateways or gateway.state != "available":
        return False
    routes = routes_to_internet(backend, vpc_id, gateway.subnet_id)
    return any(address.eni is gateway._eni for address in list(backend.addresses)) and routes


def routes_to_internet(backend: EC2Backend, vpc_id: str, subnet_id: str) -> bool:
    """Whether a subnet has a route to an internet gateway."""
    table = _table(backend, vpc_id, subnet_id)
    return table is not None and any(_is_attached(backend, vpc_id, route.gateway) for route in table.routes)
