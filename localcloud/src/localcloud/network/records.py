"""What decides about packets in a VPC: interfaces, security groups, and the routes and ACLs of subnets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ALL = "-1"
"""The protocol of a rule for all protocols."""


@dataclass(frozen=True)
class Rule:
    """A security group's rule: it allows `protocol` to or from networks (CIDR) and the members of groups.

    `first` and `last` are ports, or ICMP's type and code; None for all.
    """

    protocol: str
    first: int | None = None
    last: int | None = None
    networks: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Group:
    """A security group."""

    ingress: tuple[Rule, ...] = ()
    egress: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class Route:
    """A route out of the VPC. `to_internet`: its target is the internet gateway, which needs a public address.

    `works` is false for a black hole: the target is gone, or has itself no way out.
    """

    network: str
    to_internet: bool
    works: bool


@dataclass(frozen=True)
class Entry:
    """An entry of a network ACL: it allows or denies what the rule matches, whose networks are those of the peers."""

    allows: bool
    rule: Rule


@dataclass(frozen=True)
class Acl:
    """The network ACL of the subnet `network` (CIDR): its entries in their order, of which the first match decides."""

    network: str
    ingress: tuple[Entry, ...]
    egress: tuple[Entry, ...]


@dataclass(frozen=True)
class Interface:
    """A network interface of a node, or a mount target: its address, the ids of its security groups, its routes.

    `acl` is None for a subnet whose network ACL allows everything; `table` is the id of its subnet's route table.
    """

    address: str
    groups: tuple[str, ...]
    routes: tuple[Route, ...] = ()
    public: bool = False
    acl: Acl | None = None
    table: str = ""
    port: int = 0
    """Where a mount target accepts connections."""


@dataclass(frozen=True)
class Endpoint:
    """A VPC endpoint of a service, such as sqs, and its policy, as JSON.

    An interface endpoint has `interfaces`, and takes over the service's name if it has private DNS. A gateway endpoint
    has `tables`, the ids of the route tables with a route to it, and `networks`, the service's public addresses.
    """

    service: str
    policy: str
    interfaces: tuple[Interface, ...] = ()
    has_private_dns: bool = False
    tables: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dns:
    """What a VPC's name server answers (docs/aws-behaviour.md 2.76): `is_on` and `has_host_names` are its attributes.

    `public` has the private addresses of its nodes by their public names, which exist only with both attributes.
    """

    is_on: bool = True
    has_host_names: bool = True
    public: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
    """A VPC. `groups` are all of its security groups by id."""

    groups: dict[str, Group]
    nodes: tuple[Interface, ...]
    mount_targets: tuple[Interface, ...]
    endpoints: tuple[Endpoint, ...] = ()
    dns: Dns = Dns()
