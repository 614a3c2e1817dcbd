"""The zones of the local cloud: moto's, and in some regions a Local Zone to which the account has opted in.

AWS lists such a zone like any other, and its name comes before the others in the alphabet (docs/aws-behaviour.md 2.30).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from moto.ec2.models.availability_zones_and_regions import Region, RegionsAndZonesBackend, Zone

ORDINARY = "availability-zone"
LOCAL_ZONES = {
    "us-east-1": ("us-east-1-atl-2a", "use1-atl2-az1"),
    "us-west-2": ("us-west-2-lax-1a", "usw2-lax1-az1"),
    "eu-central-1": ("eu-central-1-ham-1a", "euc1-ham1-az1"),
}
_SOVEREIGN = "eusc-de-east-1"
# A Local Zone offers a few families; every other zone of its region offers these, too.
_FAMILIES = ("t3.", "c5.", "g4dn.")


def install() -> None:
    """Add Local Zones and the European Sovereign Cloud to moto's zones, and what moto's zones lack to all of them.

    It is harmless when it is done already.
    """
    sovereign = [Zone(f"{_SOVEREIGN}{letter}", _SOVEREIGN, f"euscdee1-az{n}") for n, letter in enumerate("abc", 1)]
    if _SOVEREIGN not in RegionsAndZonesBackend.zones:
        RegionsAndZonesBackend.zones[_SOVEREIGN] = sovereign
        there = Region(_SOVEREIGN, f"ec2.{_SOVEREIGN}.amazonaws.eu", "opt-in-not-required")
        RegionsAndZonesBackend.regions.append(there)
    for region, zones in RegionsAndZonesBackend.zones.items():
        name, zone_id = LOCAL_ZONES.get(region, ("", ""))
        if name and zones[0].name != name:
            zones.insert(0, Zone(name, region, zone_id, "local-zone"))
        for zone in zones:
            status = "opt-in-not-required" if zone.zone_type == ORDINARY else "opted-in"
            group = f"{zone.region_name}-zg-1" if zone.zone_type == ORDINARY else zone.name[:-1]
            lacking = {"opt_in_status": status, "group_name": group, "network_border_group": zone.region_name}
            vars(zone).update(lacking)


def names(region: str) -> list[str]:
    """Return the names of a region's zones."""
    return [zone.name for zone in RegionsAndZonesBackend.zones.get(region, ())]


def ordinary(zones: Iterable[Zone]) -> list[str]:
    """Return the names of the zones that are no Local Zones."""
    return [zone.name for zone in zones if zone.zone_type == ORDINARY]


def local_offerings(region: str, types: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yield the offerings of the region's Local Zone, among `types`, as rows of DescribeInstanceTypeOfferings."""
    if region in LOCAL_ZONES:
        for name in sorted(set(types)):
            if name.startswith(_FAMILIES):
                yield {"InstanceType": name, "Location": LOCAL_ZONES[region][0]}
