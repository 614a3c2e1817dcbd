"""This machine's public address, for `ssh_from: auto`: as AWS sees it, over a connection without a proxy."""

from __future__ import annotations

import ipaddress
import urllib.request

from phalanx.errors import SpecError
from phalanx.spec.cloud_names import is_local
from phalanx.waits import waiting

URL = "https://checkip.amazonaws.com/"
# Where the connections of the local cloud's users come from (docs/local-cloud.md).
_USER_ADDRESS = "203.0.113.1"
_TIMEOUT_S = 10.0
_LONGEST_ANSWER = 64


def of(cloud: str) -> str:
    """Return the address from which this machine reaches a cloud's nodes; the local cloud is behind loopback."""
    return "127.0.0.1" if is_local(cloud) else find()


def seen(cloud: str) -> tuple[str, ...]:
    """Return the addresses of which a rule must contain one; the local cloud's nodes see connections from another."""
    return (of(cloud), _USER_ADDRESS) if is_local(cloud) else (find(),)


def find() -> str:
    """Return the IPv4 address. Raises SpecError if AWS does not tell it.

    ssh makes a connection of its own, so the address of a proxy would be wrong; a VPN or a carrier's NAT may still give
    ssh another one.
    """
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with waiting("this machine's public address"), direct.open(URL, timeout=_TIMEOUT_S) as answer:
            return str(ipaddress.IPv4Address(answer.read(_LONGEST_ANSWER).decode("ascii", "replace").strip()))
    except (OSError, ValueError) as error:
        raise SpecError(
            f"ssh_from: {URL} does not say this machine's address: {error}",
            "Write your network in place of auto, such as 203.0.113.7/32.",
            code="address-unknown",
        ) from error
