"""The subnets of an existing VPC that a spec names, and all that keeps a cluster from running there. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from phalanx.data import table
from phalanx.errors import SpecError
from phalanx.node.validate import NETWORKS
from phalanx.node.workers_group import workers_of
from phalanx.spec.makers import maker_of
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_storage import HEAD

BLOCKS_ALL = "block-bidirectional"
INTERNET, NAT, OTHER = "an internet gateway", "a NAT gateway", "another gateway"


@dataclass(frozen=True)
class Subnet:
    """A subnet as EC2 describes it."""

    subnet_id: str
    vpc: str
    zone: str
    cidr: str
    free: int
    """How many addresses nobody but the cluster itself uses."""
    way_out: str
    """Where its default route leads: INTERNET, NAT or OTHER, which can't be judged; "" if nothing leads out."""
    filtered: bool = False
    """Whether its network ACL has rules of its own."""
    table: str = ""
    """The id of its route table."""
    gives_addresses: bool = False
    """Whether its instances have public addresses without asking (MapPublicIpOnLaunch)."""


@dataclass(frozen=True)
class Endpoint:
    """An endpoint that is not the cluster's: a gateway endpoint, or an interface endpoint with private DNS."""

    endpoint_id: str
    service: str
    """Such as sqs."""
    zones: tuple[str, ...] = ()
    """Where an interface endpoint has an address."""
    groups: tuple[str, ...] = ()
    """The security groups of an interface endpoint."""
    open_to: tuple[str, ...] | None = ()
    """The networks from which these let HTTPS in; None if they name prefix lists, too."""
    tables: tuple[str, ...] = ()
    """The route tables of a gateway endpoint."""
    is_open: bool = True
    """Whether its policy allows everything, as AWS's own does."""


@dataclass(frozen=True)
class ExistingVpc:
    """The VPC of the head's subnet; the two subnets may be the same."""

    vpc: str
    dns_support: bool
    dns_hostnames: bool
    head: Subnet
    workers: Subnet
    blocks: tuple[str, ...] = ()
    """Its addresses, in CIDR notation."""
    endpoints: tuple[Endpoint, ...] = ()
    """Those that are not the cluster's own."""
    interface_endpoints: int = 0
    """How many count against the quota, whatever they serve; without the cluster's own."""
    owner: str = ""
    """The account that shares it, if it is another one."""

    @property
    def is_assumed(self) -> bool:
        """Whether nobody asked EC2."""
        return not self.vpc

    @property
    def subnets(self) -> tuple[Subnet, ...]:
        return tuple(dict.fromkeys((self.head, self.workers)))

    @property
    def is_closed(self) -> bool:
        """Whether nothing leads out of one of the subnets."""
        return not all(subnet.way_out for subnet in self.subnets)

    @property
    def networks(self) -> tuple[str, ...]:
        """Where the nodes' addresses are, in CIDR notation."""
        return tuple(dict.fromkeys(one.cidr for one in (self.head, self.workers) if one.cidr))


def refuse_unsuited(
    spec: ClusterSpec,
    zones: tuple[str, ...],
    found: ExistingVpc,
    addresses: int,
    interfaces: int,
    endpoints: int,
    of_endpoints: Iterable[str],
) -> None:
    """Raise SpecError with all that is wrong with the subnets.

    zones         those that offer the types, or that of the reservation
    addresses     how many a worker takes
    interfaces    how many a worker has
    endpoints     how many interface endpoints are made
    of_endpoints  what is wrong with those of the VPC
    """
    ways_out = _of_private(found) if spec.is_private else _of_ways_out(spec, found, interfaces)
    wrong = [*_of_vpc(found), *_of_zone(spec, zones, found), *ways_out]
    wrong += [*_of_addresses(spec, found, addresses, endpoints), *of_endpoints]
    if wrong:
        hint = "Correct the VPC or name other subnets; without the key, `up` makes a VPC."
        lines = [f"network: {one}" for one in wrong]
        raise SpecError.alike(lines, hint + _about_proxies(wrong), code="unsuited-network")


def refuse_blocked(spec: ClusterSpec, mode: str, found: ExistingVpc | None) -> None:
    """Raise SpecError if VPC Block Public Access in this mode cuts off the head, or the way out of private nodes."""
    if not mode or (spec.is_private and (mode != BLOCKS_ALL or not found or found.is_closed)):
        return
    hint = "Have an administrator exclude the VPC of your subnets (`aws ec2 create-vpc-block-public-access-exclusion`)."
    if not spec.is_private and not maker_of(spec.cloud).in_public_subnet:
        hint = f"Write `network: {{access: private}}`. Or name subnets: {hint[0].lower()}{hint[1:]}"
    raise SpecError(f"network: {blocked(mode, spec.region)}", hint, code="blocked-public-access")


def blocked(mode: str, region: str) -> str:
    """Say what the account's VPC Block Public Access does (docs/aws-behaviour.md 2.70)."""
    ways = "in or out" if mode == BLOCKS_ALL else "in, and out only through NAT gateways"
    return f"VPC Block Public Access is {mode} in {region}: internet gateways let nothing {ways}"


def _about_proxies(wrong: Iterable[str]) -> str:
    """Return what to do in a network whose way out is a proxy, if a subnet has no default route."""
    if not any("leads nowhere" in one for one in wrong):
        return ""
    return " Nodes use no HTTP proxy: where that is the only way out, `access: private` needs none."


def assumed(spec: ClusterSpec) -> ExistingVpc | None:
    """Return the VPC of the spec's subnets as far as it is known without EC2: their ways out are the usual ones.

    None if the spec names no subnets.
    """
    if not spec.subnets:
        return None
    head, workers = (Subnet(name, "", "", "", 0, NAT) for name in spec.subnets)
    if not spec.is_private:
        head, workers = replace(head, way_out=INTERNET), replace(workers, way_out=NAT if workers != head else INTERNET)
    return ExistingVpc("", dns_support=True, dns_hostnames=True, head=head, workers=workers)


def require(found: ExistingVpc | None) -> ExistingVpc:
    """Return what EC2 says of the spec's subnets. Raises SpecError if it was not asked."""
    if found is None:
        raise SpecError(
            "network: only EC2 knows a subnet", "Plan with credentials and a connection.", code="cloud-not-asked"
        )
    return found


def warnings(found: ExistingVpc) -> Iterator[str]:
    """Yield what could keep the cluster from coming up and can't be judged, and what costs more."""
    if found.owner and NAT in (one.way_out for one in found.subnets):
        yield f"account {found.owner} shares {found.vpc}, whose NAT gateway can't be seen: whether it works is unknown"
    for subnet in found.subnets:
        if subnet.filtered:
            yield (
                f"the network ACL of {subnet.subnet_id} has rules of its own, which must let nodes work "
                "(between them every port, as UDP 273 for their beats) and ssh in"
            )
    if found.workers.way_out == OTHER:
        yield f"{found.workers.subnet_id} has {OTHER} as its way out: whether it leads to AWS and the web is not known"
    if found.workers.way_out == INTERNET:
        address = table("prices")["network_usd_per_hour"]["public_address"]
        yield f"workers in {found.workers.subnet_id} have public addresses, at ${address} an hour each"


def _of_vpc(found: ExistingVpc) -> Iterator[str]:
    head, workers = found.head, found.workers
    if head.vpc != workers.vpc:
        yield f"{head.subnet_id} is in {head.vpc}, and {workers.subnet_id} is in {workers.vpc}"
    if not found.dns_support:
        yield f"{found.vpc} has no DNS: set its attribute enableDnsSupport"
    # The file system's name resolves only with both (docs/aws-behaviour.md 4.5).
    if not found.dns_hostnames:
        yield f"{found.vpc} has no DNS host names: set its attribute enableDnsHostnames"


def _of_zone(spec: ClusterSpec, zones: tuple[str, ...], found: ExistingVpc) -> Iterator[str]:
    head, workers = found.head, found.workers
    if head.zone != workers.zone:
        yield f"{head.subnet_id} is in {head.zone}, and {workers.subnet_id} is in {workers.zone}"
    if workers.zone not in zones:
        yield f"{workers.subnet_id} is in {workers.zone}, and {spec.type} can be had in {', '.join(sorted(zones))}"


def _of_ways_out(spec: ClusterSpec, found: ExistingVpc, interfaces: int) -> Iterator[str]:
    head, workers = found.head, found.workers
    if head.way_out != INTERNET:
        leads = f"leads to {head.way_out}" if head.way_out else "leads nowhere"
        yield f"the default route of {head.subnet_id} {leads}: the head needs one to an internet gateway"
    if spec.nodes > 1 and not workers.way_out and workers != head:
        yield f"the default route of {workers.subnet_id} leads nowhere: workers need one to a NAT gateway"
    # docs/aws-behaviour.md 2.9
    if spec.nodes > 1 and workers.way_out == INTERNET and interfaces > 1:
        yield (
            f"{workers.subnet_id} needs public addresses, which EC2 does not give to workers with "
            f"{interfaces} network interfaces: choose a subnet with a NAT gateway"
        )


def _of_private(found: ExistingVpc) -> Iterator[str]:
    """Yield what would make nodes public, or leave them without the way out that the subnet seems to have."""
    for subnet in found.subnets:
        if subnet.way_out == INTERNET:
            yield (
                f"the default route of {subnet.subnet_id} leads to {INTERNET}, which serves only nodes with a public "
                "address: choose a subnet with a NAT gateway, or without a default route"
            )
        if subnet.gives_addresses:
            yield f"{subnet.subnet_id} gives nodes public addresses: turn off its attribute MapPublicIpOnLaunch"


def _of_addresses(spec: ClusterSpec, found: ExistingVpc, each: int, endpoints: int) -> Iterator[str]:
    needed = {found.head: 0, found.workers: endpoints}
    needed[found.head] += 1
    needed[found.workers] += each * workers_of(spec.nodes)
    needed[found.workers] += spec.storage != HEAD  # the mount target's
    for subnet, number in needed.items():
        if subnet.free < number:
            yield f"{subnet.subnet_id} has {subnet.free} free addresses and needs {number}"
        if not _is_private(subnet.cidr):
            yield f"{subnet.subnet_id} has public addresses ({subnet.cidr or 'no IPv4'}), and nodes need private ones"


def _is_private(cidr: str) -> bool:
    blocks = (ipaddress.IPv4Network(block) for block in NETWORKS.split(","))
    return bool(cidr) and any(ipaddress.IPv4Network(cidr).subnet_of(block) for block in blocks)
