"""EC2's API of Capacity Reservations, which moto lacks (docs/aws-behaviour.md 2.37, 2.62).

Only capacity for immediate use; instances that run already do not move into a new open reservation.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.responses import EC2Response

from localcloud.api import partitions
from localcloud.context import Context
from localcloud.ec2 import capacity_blocks, fleet, placement, reserved
from localcloud.ec2.capacity import CapacityError
from localcloud.ec2.reserved import Reservation

PATCHED = ("moto.ec2.responses.EC2Response",)
# What EC2 does, and nothing here would.
_NOT_HERE = ("AvailabilityZoneId", "CommitmentDuration", "OutpostArn", "PlacementGroupArn", "StartDate")


def install(context: Context) -> None:
    """Forget the reservations of an earlier local cloud in this process, and add the operations to moto's EC2."""
    reserved.forget()
    operations = {
        "create_capacity_reservation": _create,
        "describe_capacity_reservations": _describe,
        "cancel_capacity_reservation": _cancel,
        **capacity_blocks.operations(context, describe),
    }
    for name, operation in operations.items():
        setattr(EC2Response, name, operation)
    setattr(EC2Response, "localcloud_context", context)  # noqa: B010 (moto's class lacks it)


def describe(one: Reservation, now: datetime, account: str) -> dict[str, Any]:
    """Return what the API says of a reservation."""
    return {
        "CapacityReservationId": one.id,
        "OwnerId": account,
        "CapacityReservationArn": f"{partitions.arn()}:ec2:{one.region}:{account}:capacity-reservation/{one.id}",
        "InstanceType": one.instance_type,
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZone": one.zone,
        "Tenancy": "default",
        "TotalInstanceCount": one.count,
        "AvailableInstanceCount": one.free(now),
        "EbsOptimized": False,
        "EphemeralStorage": False,
        "State": one.state(now),
        "StartDate": one.begins,
        "EndDate": one.ends,
        "EndDateType": "limited" if one.ends else "unlimited",
        "InstanceMatchCriteria": "open" if one.is_open else "targeted",
        "CreateDate": one.created,
        "ReservationType": reserved.BLOCK if one.is_block else "default",
        "Tags": [{"Key": key, "Value": value} for key, value in one.tags.items()],
    }


def _create(self: Any) -> ActionResult:
    context, now = self.localcloud_context, self.localcloud_context.clock.now()
    made = _wanted(self, now)
    _hold(made, made.count)
    reserved.keep(made)
    if made.ends:
        context.clock.call_later((made.ends - now).total_seconds(), _release, made)
    return ActionResult({"CapacityReservation": describe(made, now, context.account)})


def _wanted(self: Any, now: datetime) -> Reservation:
    for name in _NOT_HERE:
        if self._get_param(name):
            raise EC2ClientError("UnsupportedOperation", f"The local cloud does not serve {name} of reservations.")
    instance_type, zone = self._get_param("InstanceType"), self._get_param("AvailabilityZone")
    if not zone:
        raise EC2ClientError("MissingParameter", "The request must contain the parameter AvailabilityZone")
    _check_place(self.region, instance_type, zone)
    return Reservation(
        self.region,
        zone,
        instance_type,
        int(self._get_param("InstanceCount")),
        now,
        now,
        _end(self, now),
        is_open=self._get_param("InstanceMatchCriteria", "open") == "open",
        tags=self._parse_tag_specification("capacity-reservation").get("capacity-reservation", {}),
    )


def _check_place(region: str, instance_type: str, zone: str) -> None:
    if instance_type not in INSTANCE_TYPES:
        raise EC2ClientError("InvalidParameterValue", f"Invalid value '{instance_type}' for InstanceType.")
    if zone not in placement.zones_offering(instance_type, region):
        text = f"The requested instance type ({instance_type}) is not supported in {zone}."
        raise EC2ClientError("Unsupported", text)


def _end(self: Any, now: datetime) -> datetime | None:
    ends, kind = reserved.moment(self._get_param("EndDate")), self._get_param("EndDateType", "unlimited")
    if (kind == "limited") != (ends is not None):
        text = "EndDate is required if EndDateType is limited, and must be omitted if it is unlimited."
        raise EC2ClientError("InvalidParameterCombination", text)
    if ends and ends <= now:
        raise EC2ClientError("InvalidParameterValue", f"The end date {ends:%Y-%m-%dT%H:%M:%SZ} is in the past.")
    return ends


def _hold(made: Reservation, count: int) -> None:
    """Take the capacity, of which the account's quota counts all. Raises EC2ClientError."""
    try:
        fleet.current().pool.hold(made.instance_type, made.zone, placement.vcpus(made.instance_type), count)
    except CapacityError as refusal:
        raise EC2ClientError(refusal.code, refusal.message) from refusal


def _release(one: Reservation) -> None:
    """End a reservation: what nobody uses is free, and its instances run on outside of it."""
    unused, vcpus = reserved.release(one), placement.vcpus(one.instance_type)
    fleet.current().pool.give_back(one.instance_type, one.zone, vcpus, unused)
    for instance in fleet.current().live():
        if fleet.reservation_of(instance) == one.id:
            fleet.put_in_reservation(instance, "")


def _cancel(self: Any) -> ActionResult:
    one = reserved.find(self.region, self._get_param("CapacityReservationId"))
    if one.is_block:
        raise EC2ClientError("OperationNotPermitted", "A Capacity Block can't be cancelled.")
    one.cancelled = one.state(self.localcloud_context.clock.now()) == "active"
    _release(one)
    return ActionResult({"Return": True})


def _describe(self: Any) -> ActionResult:
    context, ids = self.localcloud_context, self._get_param("CapacityReservationIds", [])
    found = [reserved.find(self.region, one) for one in ids] if ids else reserved.everything(self.region)
    described = [describe(one, context.clock.now(), context.account) for one in found]
    filters = self._filters_from_querystring()
    return ActionResult({"CapacityReservations": [one for one in described if _matches(one, filters)]})


_FILTERS = {
    "instance-type": "InstanceType",
    "state": "State",
    "availability-zone": "AvailabilityZone",
    "instance-match-criteria": "InstanceMatchCriteria",
}


def _matches(described: Mapping[str, Any], filters: Mapping[str, list[str]]) -> bool:
    tags = {f"tag:{tag['Key']}": tag["Value"] for tag in described["Tags"]}
    values = {**tags, **{name: described[key] for name, key in _FILTERS.items()}}
    return all(values.get(name) in wanted for name, wanted in filters.items())
