"""The rule of `network`: the addresses of the VPC that the stack makes."""

from __future__ import annotations

import ipaddress

from phalanx.node.validate import NETWORKS
from phalanx.spec.spec_checks import WrongError, cut
from phalanx.spec.spec_groups import group
from phalanx.spec.spec_rules import text, whole

# EC2 allows VPCs from /16 to /28 (docs/aws-behaviour.md 2.50), and this one has to hold two subnets.
_LARGEST, _SMALLEST = 16, 27
_CIDR = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}/[0-9]{1,2}"
_PRIVATE = tuple(ipaddress.IPv4Network(block) for block in NETWORKS.split(","))


def _cidr(value: str) -> str:
    """Return a private network in CIDR notation, of a size that EC2 allows."""
    try:
        found = ipaddress.IPv4Network(value if "/" in value else "", strict=False)
    except ValueError:
        raise WrongError(f"'{cut(value)}' is not an IPv4 network", "write one such as 10.20.0.0/16") from None
    if str(found) != value:
        raise WrongError(f"'{cut(value)}' is an address inside a network", f"write {found}")
    if not _LARGEST <= found.prefixlen <= _SMALLEST:
        raise WrongError(f"must be from /{_LARGEST} to /{_SMALLEST}, is /{found.prefixlen}", "such as 10.20.0.0/16")
    if not any(found.subnet_of(block) for block in _PRIVATE):
        raise WrongError(
            f"{found} has public addresses: nodes could not reach their owners",
            f"write a part of {', '.join(map(str, _PRIVATE))}",
        )
    return value


NETWORK = group(
    {
        "cidr": text(
            _cidr, lambda: {"pattern": whole(_CIDR)}, f"a private IPv4 network from /{_LARGEST} to /{_SMALLEST}"
        ),
    }
)
