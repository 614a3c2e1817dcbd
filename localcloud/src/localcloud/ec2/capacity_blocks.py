"""Capacity Blocks: what EC2 offers, the purchase, and the end of their instances before the block's own end.

Each zone that has the type offers one. They last whole days and end at 11:30 UTC, as on AWS (docs/aws-behaviour.md
2.63). Unlike there, one with an earlier `EndDateRange` ends at that time, so that an end can be tried.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime, time, timedelta
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPES

from localcloud.context import Context
from localcloud.ec2 import fleet, placement, reserved
from localcloud.ec2.capacity import CapacityError
from localcloud.ec2.reserved import Reservation

CLEARED_S = 1800.0
"""How long before a block's end EC2 begins to terminate its instances."""
_ENDS_AT = time(11, 30)
_CODE = "Server.ScheduledStop"
_MOST_OFFERS = 6
_LONGEST_DAYS, _LONGEST_IN_DAYS, _WEEK = 182, 14, 7
Describe = Callable[[Reservation, datetime, str], dict[str, Any]]

_offered: dict[str, Reservation] = {}


def operations(context: Context, describe: Describe) -> dict[str, Callable[[Any], ActionResult]]:
    """Return EC2's operations on blocks, by the names of moto's methods."""
    _offered.clear()

    def offerings(self: Any) -> ActionResult:
        found = _offers(self, context.clock.now())
        return ActionResult({"CapacityBlockOfferings": [_shown(key, one) for key, one in found.items()]})

    def purchase(self: Any) -> ActionResult:
        tags = self._parse_tag_specification("capacity-reservation").get("capacity-reservation", {})
        bought = _buy(context, self._get_param("CapacityBlockOfferingId"), tags)
        return ActionResult({"CapacityReservation": describe(bought, context.clock.now(), context.account)})

    return {"describe_capacity_block_offerings": offerings, "purchase_capacity_block": purchase}


def clear(context: Context, reservation_id: str) -> None:
    """Terminate all instances of a block, and let none begin in it. Raises ValueError if there is no such block."""
    now = context.clock.now()
    block = next((one for one in reserved.active(now) if one.is_block and one.id == reservation_id), None)
    if block is None:
        raise ValueError(f"{reservation_id} is no Capacity Block of this local cloud")
    _clear(block)


def _offers(self: Any, now: datetime) -> dict[str, Reservation]:
    instance_type, hours = self._get_param("InstanceType"), int(self._get_param("CapacityDurationHours"))
    _check_duration(hours)
    begins = max(reserved.moment(self._get_param("StartDateRange")) or now, now)
    ends = _end(begins, hours, reserved.moment(self._get_param("EndDateRange")))
    if not _has_blocks(instance_type) or ends <= begins:
        return {}
    count, zones = int(self._get_param("InstanceCount") or 1), placement.zones_offering(instance_type, self.region)
    found = {
        f"cb-0{secrets.token_hex(8)}": Reservation(
            self.region, zone, instance_type, count, now, begins, ends, is_block=True
        )
        for zone in zones[:_MOST_OFFERS]
    }
    _offered.update(found)
    return found


def _check_duration(hours: int) -> None:
    days, rest = divmod(hours, 24)
    if rest or not 1 <= days <= _LONGEST_DAYS or (days > _LONGEST_IN_DAYS and days % _WEEK):
        raise EC2ClientError("InvalidParameterValue", f"Invalid value '{hours}' for CapacityDurationHours.")


def _end(begins: datetime, hours: int, latest: datetime | None) -> datetime:
    """Return the first 11:30 UTC that leaves the whole duration, or the latest end that was requested."""
    least = begins + timedelta(hours=hours)
    end = datetime.combine(least.date(), _ENDS_AT, least.tzinfo)
    end += timedelta(days=end < least)
    return min(end, latest or end)


def _has_blocks(instance_type: str | None) -> bool:
    return reserved.BLOCK in INSTANCE_TYPES.get(instance_type or "", {}).get("SupportedUsageClasses", [])


def _shown(key: str, offer: Reservation) -> dict[str, Any]:
    assert offer.ends is not None
    minutes = int((offer.ends - offer.begins).total_seconds() // 60)
    return {
        "CapacityBlockOfferingId": key,
        "InstanceType": offer.instance_type,
        "AvailabilityZone": offer.zone,
        "InstanceCount": offer.count,
        "StartDate": offer.begins,
        "EndDate": offer.ends,
        "CapacityBlockDurationHours": minutes // 60,
        "CapacityBlockDurationMinutes": minutes,
        # Nobody pays here, and the price is not this program's to invent.
        "UpfrontFee": "0.00",
        "CurrencyCode": "USD",
        "Tenancy": "default",
    }


def _buy(context: Context, offering: str, tags: dict[str, str]) -> Reservation:
    if offering not in _offered:
        text = f"The capacity block offering ID '{offering}' was not found"
        raise EC2ClientError("InvalidCapacityBlockOfferingIdNotFound", text)
    block = _offered.pop(offering)
    block.tags, now = tags, context.clock.now()
    try:
        # A block is in no quota of vCPUs.
        fleet.current().pool.hold(block.instance_type, block.zone, 0, block.count)
    except CapacityError as refusal:
        raise EC2ClientError(refusal.code, refusal.message) from refusal
    reserved.keep(block)
    assert block.ends is not None
    left_s = (block.ends - now).total_seconds()
    context.clock.call_later(max(0.0, left_s - CLEARED_S), _clear, block)
    context.clock.call_later(left_s, _end_of, block)
    return block


def _clear(block: Reservation) -> None:
    block.cleared = True
    for instance in fleet.current().live():
        if fleet.reservation_of(instance) == block.id:
            fleet.current().end(instance, _CODE, f"{_CODE}: The Capacity Block {block.id} ends")


def _end_of(block: Reservation) -> None:
    fleet.current().pool.give_back(block.instance_type, block.zone, 0, block.count)
