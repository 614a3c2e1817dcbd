"""Regions that an account has not enabled: their endpoints refuse its keys (docs/aws-behaviour.md 2.69)."""

from __future__ import annotations

from typing import Any, Protocol

from phalanx.errors import CloudError

# The first region of each partition, which is enabled in every account of it (docs/aws-behaviour.md 2.69, 6.1).
_HOMES = {"cn": "cn-north-1", "us-gov": "us-gov-west-1", "eusc": "eusc-de-east-1"}


class _Api(Protocol):
    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]: ...


def home_of(region: str) -> str:
    """Return the region of the same partition that every account has enabled."""
    return next((home for prefix, home in _HOMES.items() if region.startswith(f"{prefix}-")), "us-east-1")


def is_off(home: _Api, region: str) -> bool:
    """Whether the account has not enabled a region. False if its home region can't be asked, either."""
    try:
        found = home.call("ec2", "describe_regions", AllRegions=True, RegionNames=[region])["Regions"]
    except CloudError:
        return False
    return bool(found) and found[0].get("OptInStatus") == "not-opted-in"


def off(region: str) -> tuple[str, str]:
    """Return what to say of a region that is not enabled, and the remedy."""
    command = f"aws account enable-region --region-name {region}"
    return f"{region} is not enabled in this account", f"Run `{command}`, which can take some hours."
