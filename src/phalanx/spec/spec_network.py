"""The rule of `network`: the VPC that the stack makes, and its ways in and out, or the subnets of an existing one."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from phalanx.node.validate import NETWORKS
from phalanx.spec import spec_checks as checks
from phalanx.spec.spec_checks import ANYWHERE, AUTO, EVERYWHERE, PRIVATE, WrongError, cut, is_private
from phalanx.spec.spec_groups import group
from phalanx.spec.spec_limits import MOST_NETWORKS
from phalanx.spec.spec_rules import Rule, matching, one_or_more, text, whole, word

# There, names of endpoints' services differ (docs/aws-behaviour.md 2.32).
_OTHER_NAMES = ("cn-", "eusc-")
# EC2 allows VPCs from /16 to /28 (docs/aws-behaviour.md 2.50), and this one has to hold two subnets.
_LARGEST, _SMALLEST = 16, 27
_CIDR = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}/[0-9]{1,2}"
# From these, nobody on the internet comes (RFC 6890): a list of all others is the whole internet.
_NOT_OF_THE_INTERNET = (
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
    *("192.168.0.0/16", "224.0.0.0/3"),
)
_BLOCKS = tuple(ipaddress.IPv4Network(block) for block in NETWORKS.split(","))


def _cidr(value: str) -> str:
    """Return a private network in CIDR notation, of a size that EC2 allows."""
    try:
        found = ipaddress.IPv4Network(value if "/" in value else "", strict=False)
    except ValueError:
        raise WrongError(
            f"'{cut(value)}' is not an IPv4 network", "write one such as 10.20.0.0/16", code="not-a-network"
        ) from None
    if str(found) != value:
        raise WrongError(f"'{cut(value)}' is an address inside a network", f"write {found}", code="not-a-network")
    if not _LARGEST <= found.prefixlen <= _SMALLEST:
        raise WrongError(
            f"must be from /{_LARGEST} to /{_SMALLEST}, is /{found.prefixlen}",
            "such as 10.20.0.0/16",
            code="out-of-range",
        )
    if not any(found.subnet_of(block) for block in _BLOCKS):
        raise WrongError(
            f"{found} has public addresses: nodes could not reach their owners",
            f"write a part of {', '.join(map(str, _BLOCKS))}",
            code="public-addresses",
        )
    return value


def _one_way(given: dict[str, Any]) -> dict[str, Any]:
    if "cidr" in given and given.keys() & {"head_subnet", "worker_subnet"}:
        raise WrongError(
            "has a cidr, which is for a new VPC, beside a subnet of an existing one",
            "remove one of them",
            code="conflicting-keys",
        )
    if "worker_subnet" in given and "head_subnet" not in given:
        raise WrongError(
            "has a worker_subnet without a head_subnet",
            "write both, or only head_subnet, for all nodes",
            code="conflicting-keys",
        )
    return given


def in_its_place(value: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse zones beside subnets, which are in one, and private access where endpoints have other names."""
    region = str(above.get("region", ""))
    if is_private(value) and region.startswith(_OTHER_NAMES):
        raise WrongError(
            f"access can't be private in {region}, where the services of endpoints have other names",
            "remove it",
            code="other-partition",
        )
    if "head_subnet" in value and above.get("zones"):
        raise WrongError("has subnets, whose zone all nodes are in", "remove `zones`", code="conflicting-keys")
    return value


def are_the_internet(networks: Iterable[str]) -> bool:
    """Whether these networks, in CIDR notation, together contain every address of the internet."""
    every = [ipaddress.IPv4Network(one) for one in (*networks, *_NOT_OF_THE_INTERNET)]
    return [str(one) for one in ipaddress.collapse_addresses(every)] == [EVERYWHERE]


def _spelled_out(rule: Rule) -> Rule:
    """Return the rule, which also refuses networks that are the whole internet, unless one entry says so."""

    def check(value: Any) -> Any:
        accepted = rule.check(value)
        networks = [one for one in accepted if one != AUTO] if isinstance(accepted, tuple) else []
        if ANYWHERE not in networks and are_the_internet(networks):
            raise WrongError(
                f"{', '.join(networks)} together open ssh to the whole internet",
                "write `ssh_from: anywhere` if that is what you want",
                code="open-to-all",
            )
        return accepted

    return replace(rule, check=check)


_SUBNET = matching(
    r"subnet-[0-9a-f]{8}(?:[0-9a-f]{9})?",
    "must be the id of a subnet, is '{}'",
    "such as subnet-0123456789abcdef0",
    "the id of a subnet",
)

SSH_FROM = _spelled_out(
    one_or_more(
        text(
            checks.network,
            lambda: {"pattern": whole(checks.NETWORK)},
            "an IPv4 network such as 203.0.113.0/24, auto or anywhere",
        ),
        MOST_NETWORKS,
    )
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
