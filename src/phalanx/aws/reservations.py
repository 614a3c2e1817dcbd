"""The Capacity Reservation or Capacity Block that a spec names, as EC2 describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phalanx.errors import SpecError
from phalanx.plan.capacity import Reservation
from phalanx.spec.spec import ClusterSpec

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws


def find(api: Aws, spec: ClusterSpec) -> Reservation | None:
    """Return the reservation; None if the spec names none. Raises SpecError if it does not exist."""
    if not spec.reservation:
        return None
    ids = [spec.reservation]
    answer = api.exists("ec2", "describe_capacity_reservations", CapacityReservationIds=ids)
    if not answer or not answer["CapacityReservations"]:
        raise SpecError(
            f"capacity: {spec.reservation} does not exist in {api.region}",
            "`aws ec2 describe-capacity-reservations` lists them.",
            code="no-reservation",
        )
    return _reservation(answer["CapacityReservations"][0])


def _reservation(entry: dict[str, Any]) -> Reservation:
    begins, ends = entry.get("StartDate"), entry.get("EndDate")
    return Reservation(
        entry["CapacityReservationId"],
        entry.get("ReservationType") == "capacity-block",
        entry["State"],
        entry["InstanceType"],
        entry["AvailabilityZone"],
        entry["AvailableInstanceCount"],
        f"{begins:%Y-%m-%d %H:%M} UTC" if begins else "",
        f"{ends:%Y-%m-%d %H:%M} UTC" if ends else "",
    )
