"""The rule of `network`: the VPC that the stack makes, and its ways in and out, or the subnets of an existing one."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from phalanx.node.validate import NETWORKS
from phalanx.spec import spec_checks as checks
from phalanx.spec.spec_checks import PRIVATE, WrongError, cut, is_private
from phalanx.spec.spec_groups import group
from phalanx.spec.spec_limits import MOST_NETWORKS
from phalanx.spec.spec_rules import matching, one_or_more, text, whole, word

# There, names of endpoints' services differ (docs/aws-behaviour.md 2.32).
_OTHER_NAMES = ("cn-", "eusc-")
# EC2 allows VPCs from /16 to /28 (docs/aws-behaviour.md 2.50), and this one has to hold two subnets.
_LARGEST, _SMALLEST = 16, 27
_CIDR = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}/[0-9]{1,2}"
_BLOCKS = tuple(ipaddress.IPv4Network(block) for block in NETWORKS.split(","))


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
    if not any(found.subnet_of(block) for block in _BLOCKS):
        raise WrongError(
            f"{found} has public addresses: nodes could not reach their owners",
            f"write a part of {', '.join(map(str, _BLOCKS))}",
        )
    return value


def _one_way(given: dict[str, Any]) -> dict[str, Any]:
    if "cidr" in given and given.keys() & {"head_subnet", "worker_subnet"}:
        raise WrongError("has a cidr, which is for a new VPC, beside a subnet of an existing one", "remove one of them")
    if "worker_subnet" in given and "head_subnet" not in given:
        raise WrongError("has a worker_subnet without a head_subnet", "write both, or head_subnet alone for all nodes")
    return given


def in_its_place(value: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse zones beside subnets, which are in one, and private access where endpoints have other names."""
    region = str(above.get("region", ""))
    if is_private(value) and region.startswith(_OTHER_NAMES):
        raise WrongError(
            f"access can't be private in {region}, where the services of endpoints have other names", "remove it"
        )
    if "head_subnet" in value and above.get("zones"):
        raise WrongError("has subnets, whose zone all nodes are in", "remove `zones`")
    return value


_SUBNET = matching(
    r"subnet-[0-9a-f]{8}(?:[0-9a-f]{9})?",
    "must be the id of a subnet, is '{}'",
    "such as subnet-0123456789abcdef0",
    "the id of a subnet",
)

SSH_FROM = one_or_more(
    text(
        checks.network,
        lambda: {"pattern": whole(checks.NETWORK)},
        "an IPv4 network such as 203.0.113.0/24, auto or anywhere",
    ),
    MOST_NETWORKS,
)
"""The rule of `ssh_from`."""

NETWORK = group(
    {
        "access": word(("public", PRIVATE)),
        "cidr": text(
            _cidr, lambda: {"pattern": whole(_CIDR)}, f"a private IPv4 network from /{_LARGEST} to /{_SMALLEST}"
        ),
        "head_subnet": _SUBNET,
        "worker_subnet": _SUBNET,
    },
    _one_way,
)
