"""Regions that an account has not enabled: their endpoints refuse its keys (docs/aws-behaviour.md 2.69)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.errors import CloudError

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

UNKNOWN_KEYS = "unknown-credentials"
# The first region of each partition, which is enabled in every account of it (docs/aws-behaviour.md 2.69, 6.1).
_HOMES = {"cn": "cn-north-1", "us-gov": "us-gov-west-1", "eusc": "eusc-de-east-1"}
_ATTEMPTS = 3


def home_of(region: str) -> str:
    """Return the region of the same partition that every account has enabled."""
    return next((home for prefix, home in _HOMES.items() if region.startswith(f"{prefix}-")), "us-east-1")


def is_off(home: Aws, region: str) -> bool:
    """Whether the account has not enabled a region. False if its home region can't be asked, either."""
    try:
        found = home.call("ec2", "describe_regions", AllRegions=True, RegionNames=[region])["Regions"]
    except CloudError:
        return False
    return bool(found) and found[0].get("OptInStatus") == "not-opted-in"


def remedy(region: str) -> str:
    return f"`aws account enable-region --region-name {region}`; it takes minutes."


def explained(api: Aws, error: CloudError) -> CloudError:
    """Return what a refusal of the account's keys means in this region."""
    home = home_of(api.region)
    if error.code != UNKNOWN_KEYS or api.region == home:
        return error
    asked = type(api)(home, api.name)
    asked.limit_attempts(_ATTEMPTS)
    if not is_off(asked, api.region):
        return error
    return CloudError(f"{api.region} is not enabled in this account", remedy(api.region), code="region-off")
