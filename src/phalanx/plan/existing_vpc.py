"""The subnets of an existing VPC that a spec names, and all that keeps a cluster from running there. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from phalanx.data import table
from phalanx.errors import SpecError
from phalanx.node.validate import NETWORKS
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_storage import HEAD

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


@dataclass(frozen=True)
class ExistingVpc:
    """The VPC of the head's subnet; the two subnets may be the same."""

    vpc: str
    dns_support: bool
    dns_hostnames: bool
    head: Subnet
    workers: Subnet

    @property
    def networks(self) -> tuple[str, ...]:
        """Where the nodes' addresses are, in CIDR notation."""
        return tuple(dict.fromkeys((self.head.cidr, self.workers.cidr)))


def refuse_unsuited(
    spec: ClusterSpec, zones: tuple[str, ...], found: ExistingVpc | None, addresses: int, interfaces: int
) -> None:
    """Raise SpecError with all that is wrong with the subnets.

    zones       those that offer the types, or that of the reservation
    addresses   how many a worker takes
    interfaces  how many a worker has
    """
    if not spec.subnets:
        return
    if found is None:
        raise SpecError("network: only EC2 knows a subnet", "Plan with credentials and a connection.")
    wrong = [*_of_vpc(found), *_of_zone(spec, zones, found), *_of_ways_out(spec, found, interfaces)]
    wrong += [*_of_addresses(spec, found, addresses)]
    if wrong:
        hint = "Correct the VPC or name other subnets; without the key, `up` makes a VPC."
        raise SpecError("\n".join(f"network: {one}" for one in wrong), hint)


def warnings(found: ExistingVpc) -> Iterator[str]:
    """Yield what could keep the cluster from coming up and can't be judged, and what costs more."""
    for subnet in dict.fromkeys((found.head, found.workers)):
        if subnet.filtered:
            yield f"the network ACL of {subnet.subnet_id} has rules of its own, which must let nodes work and ssh in"
    if found.workers.way_out == OTHER:
        yield f"{found.workers.subnet_id} has {OTHER} as its way out: whether it leads to AWS and the web is not known"
    if found.workers.way_out == INTERNET:
        address = table("instance_types")["network_usd_per_hour"]["public_address"]
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


def _of_addresses(spec: ClusterSpec, found: ExistingVpc, each: int) -> Iterator[str]:
    needed = {found.head: 0, found.workers: 0}
    needed[found.head] += 1
    needed[found.workers] += each * (spec.nodes - 1)
    needed[found.workers] += spec.storage != HEAD  # the mount target's
    for subnet, number in needed.items():
        if subnet.free < number:
            yield f"{subnet.subnet_id} has {subnet.free} free addresses and needs {number}"
        if not _is_private(subnet.cidr):
            yield f"{subnet.subnet_id} has public addresses ({subnet.cidr or 'no IPv4'}), and nodes need private ones"


def _is_private(cidr: str) -> bool:
    blocks = (ipaddress.IPv4Network(block) for block in NETWORKS.split(","))
    return bool(cidr) and any(ipaddress.IPv4Network(cidr).subnet_of(block) for block in blocks)
