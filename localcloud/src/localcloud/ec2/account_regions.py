"""The regions that an account has enabled: a new one only those of every account (docs/aws-behaviour.md 2.69)."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend
from moto.ec2.responses.availability_zones_and_regions import AvailabilityZonesAndRegions
from moto.utilities.utils import get_partition

from localcloud import accounts
from localcloud.api import partitions
from localcloud.context import Context

PATCHED = ("moto.ec2.responses.availability_zones_and_regions.AvailabilityZonesAndRegions.describe_regions",)
_OFF = "not-opted-in"
# Those that were launched before March 2019; moto takes af-south-1, eu-south-1 and ap-southeast-3 for such.
_OF_EVERY_ACCOUNT = frozenset(
    {
        *("ap-northeast-1", "ap-northeast-2", "ap-northeast-3", "ap-south-1", "ap-southeast-1", "ap-southeast-2"),
        *("ca-central-1", "eu-central-1", "eu-north-1", "eu-west-1", "eu-west-2", "eu-west-3", "sa-east-1"),
        *("us-east-1", "us-east-2", "us-west-1", "us-west-2"),
    }
)


def install(context: Context) -> None:
    """Show which regions are enabled, and the others only to whoever asks for them."""
    AvailabilityZonesAndRegions.describe_regions = _describe_regions
    for one in RegionsAndZonesBackend.regions:
        ours = _OFF if context.profile == accounts.FRESH else "opted-in"
        one.opt_in_status = ours if _is_optional(one.name) else "opt-in-not-required"


def is_off(context: Context, region: str) -> bool:
    """Whether the account's keys are unknown in a region."""
    return partitions.is_elsewhere(region) or (context.profile == accounts.FRESH and _is_optional(region))


def _is_optional(region: str) -> bool:
    return region not in _OF_EVERY_ACCOUNT and get_partition(region) == "aws" and region.count("-") > 1


def _describe_regions(self: Any) -> ActionResult:
    self.error_on_dryrun()
    every = self.ec2_backend.describe_regions(self._get_param("RegionNames", []))
    found = [one for one in every if not partitions.is_elsewhere(one.name)]
    is_all = str(self._get_param("AllRegions")).lower() == "true"
    return ActionResult({"Regions": [one for one in found if is_all or one.opt_in_status != _OFF]})
