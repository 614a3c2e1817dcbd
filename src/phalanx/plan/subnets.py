"""How a new VPC is cut into two subnets, and whether the nodes fit in there. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from itertools import islice

from phalanx.errors import SpecError
from phalanx.node.workers_group import workers_of
from phalanx.spec.spec import ClusterSpec

DEFAULT = "10.0.0.0/16"
_PUBLIC_PREFIX = 24
# 4,091 addresses: enough for a thousand workers of most types.
_PRIVATE_PREFIX = 20
# EC2 keeps five addresses of each subnet (docs/aws-behaviour.md 2.50), and a mount target takes one.
_KEPT, _MOUNT_TARGET = 5, 1
_SMALLEST_PREFIX = 27


@dataclass(frozen=True)
class NewNetwork:
    """The blocks, in CIDR notation, of a new VPC and of its two subnets; `public` is "" if there is only one.

    `endpoints`: how many interface endpoints have an address in the private one.
    """

    vpc: str
    public: str
    private: str
    endpoints: int = 0

    @property
    def places(self) -> int:
        """How many addresses workers may have. Without a public subnet, the head has one, too."""
        of_head = 0 if self.public else 1
        return ipaddress.IPv4Network(self.private).num_addresses - _KEPT - _MOUNT_TARGET - of_head - self.endpoints


def new(cidr: str, endpoints: int = 0) -> NewNetwork:
    """Cut a VPC's block: the public subnet is at its beginning, and the private one follows it.

    A VPC with interface endpoints has one subnet, as large as itself.
    """
    if endpoints:
        return NewNetwork(cidr, "", cidr, endpoints)
    return NewNetwork(cidr, _block(cidr, _PUBLIC_PREFIX, 0), _block(cidr, _PRIVATE_PREFIX, 1))


def _block(cidr: str, prefix: int, number: int) -> str:
    """Return a block of this size, or of half the VPC where that is smaller."""
    vpc = ipaddress.IPv4Network(cidr)
    blocks = vpc.subnets(new_prefix=max(prefix, vpc.prefixlen + 1))
    return str(next(islice(blocks, number, None)))


def refuse_too_small(spec: ClusterSpec, cidr: str, each: int, endpoints: int = 0) -> None:
    """Raise SpecError if the workers, with this many addresses each, do not fit into the private subnet."""
    workers = workers_of(spec.nodes)
    needed, places = each * workers, new(cidr, endpoints).places
    if needed <= places:
        return
    able = (
        prefix for prefix in range(_SMALLEST_PREFIX, 15, -1) if new(f"0.0.0.0/{prefix}", endpoints).places >= needed
    )
    prefix = next(able, None)
    raise SpecError(
        f"network: {cidr} has {places} addresses for workers, and {workers} workers need {needed}",
        f"Write a network of /{prefix} or larger." if prefix else f"At most {places // each} workers fit.",
        code="network-too-small",
    )
