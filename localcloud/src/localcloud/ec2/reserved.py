"""Reserved capacity: which reservation a launch uses, and what EC2 refuses (docs/aws-behaviour.md 2.15, 2.62, 2.63)."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from moto.ec2.exceptions import EC2ClientError

BLOCK = "capacity-block"
_ID = re.compile(r"cr-(?:[0-9a-f]{8}|[0-9a-f]{17})")
_ONLY, _FIRST, _NONE, _DEFAULT = "capacity-reservations-only", "capacity-reservations-first", "none", "default"
_EXCEEDED = "The requested reservation does not have sufficient compatible and available capacity for this request."
_MARKET = "The market type (purchasing) option is not valid. Choose a different market type and try again"


@dataclass(eq=False)
class Reservation:
    """A Capacity Reservation or a Capacity Block. `used` places have instances; a block is `cleared` before its end.

    What has been cancelled or has expired is `released`: its capacity is free again.
    """

    region: str
    zone: str
    instance_type: str
    count: int
    created: datetime
    begins: datetime
    ends: datetime | None = None
    is_open: bool = False
    is_block: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    id: str = field(default_factory=lambda: f"cr-0{secrets.token_hex(8)}")
    used: int = 0
    cancelled: bool = False
    released: bool = False
    cleared: bool = False

    def state(self, now: datetime) -> str:
        """Return the state as the API names it."""
        if self.cancelled:
            return "cancelled"
        if now < self.begins:
            return "scheduled"
        return "expired" if self.ends and now >= self.ends else "active"

    def free(self, now: datetime) -> int:
        """Return how many instances can still be launched in it."""
        has_places = self.state(now) == "active" and not self.cleared and not self.released
        return self.count - self.used if has_places else 0


@dataclass(frozen=True)
class Wish:
    """What a launch says of reservations: a preference, the reservations that it targets, and its market."""

    preference: str = ""
    ids: tuple[str, ...] = ()
    market: str = ""


_lock = threading.Lock()
_held: dict[str, Reservation] = {}
# RunInstances' own specification, which moto does not pass on.
_requested: ContextVar[Mapping[str, Any] | None] = ContextVar("requested", default=None)


def forget() -> None:
    """Forget all reservations of an earlier local cloud in this process."""
    _held.clear()


def keep(reservation: Reservation) -> None:
    _held[reservation.id] = reservation


def everything(region: str) -> list[Reservation]:
    """Return the reservations of a region, those that ended included."""
    return [one for one in list(_held.values()) if one.region == region]


def find(region: str, reservation_id: str) -> Reservation:
    """Return a reservation. Raises EC2ClientError if there is none."""
    if not _ID.fullmatch(reservation_id):
        text = f"The capacity reservation ID '{reservation_id}' is malformed"
        raise EC2ClientError("InvalidCapacityReservationId.Malformed", text)
    found = _held.get(reservation_id)
    if found is None or found.region != region:
        text = f"The capacity reservation ID '{reservation_id}' was not found"
        raise EC2ClientError("InvalidCapacityReservationId.NotFound", text)
    return found


def active(now: datetime) -> list[Reservation]:
    """Return the reservations of all regions that have begun or will begin."""
    return [one for one in list(_held.values()) if one.state(now) in ("active", "scheduled")]


def wish(of_group: Mapping[str, Any] | None, template: Mapping[str, Any], market: str) -> Wish:
    """Return what an Auto Scaling group, a request or a launch template says, in this order."""
    said = of_group or {}
    if said.get("CapacityReservationPreference", _DEFAULT) == _DEFAULT and not said.get("CapacityReservationTarget"):
        said = _requested.get() or template.get("CapacityReservationSpecification") or {}
    target = said.get("CapacityReservationTarget") or {}
    ids = [*target.get("CapacityReservationIds", ()), target.get("CapacityReservationId")]
    market = market or (template.get("InstanceMarketOptions") or {}).get("MarketType", "")
    return Wish(said.get("CapacityReservationPreference", ""), tuple(one for one in ids if one), market)


def refuse_group(wanted: Wish) -> None:
    """Raise EC2ClientError for a placement group with a Capacity Block (docs/aws-behaviour.md 2.14)."""
    if wanted.market == BLOCK:
        text = "A placement group can't be specified for instances in a Capacity Block."
        raise EC2ClientError("InvalidParameterCombination", text)


def take(wanted: Wish, place: tuple[str, str, str], count: int, now: datetime) -> Reservation | None:
    """Take places for instances; None if they run outside of reservations. Raises EC2ClientError.

    `place` is the region, the zone and the type.
    """
    with _lock:
        found = _choose(wanted, place, count, now)
        if found:
            found.used += count
        return found


def leave(reservation_id: str, count: int = 1) -> bool:
    """Give places back; return whether their capacity is free now, because the reservation has been released."""
    with _lock:
        one = _held[reservation_id]
        one.used -= count
        return one.released


def release(one: Reservation) -> int:
    """Mark a reservation as released; return how many places have no instance, 0 if it was released before."""
    with _lock:
        unused = 0 if one.released else one.count - one.used
        one.released = True
        return unused


def is_released(reservation_id: str) -> bool:
    """Whether instances of this reservation run on outside of it; of "", they do not."""
    found = _held.get(reservation_id)
    return found is not None and found.released


def _choose(wanted: Wish, place: tuple[str, str, str], count: int, now: datetime) -> Reservation | None:
    if wanted.ids:
        return _targeted(wanted, place, count, now)
    if wanted.market == BLOCK:
        raise _wrong_market()
    if wanted.market or wanted.preference == _NONE:
        return None
    fits = [one for one in everything(place[0]) if one.is_open and not _refusal(one, wanted, place, count, now)]
    if not fits and wanted.preference == _ONLY:
        raise _exceeded()
    return fits[0] if fits else None


def _targeted(wanted: Wish, place: tuple[str, str, str], count: int, now: datetime) -> Reservation | None:
    targets = [find(place[0], one) for one in wanted.ids]
    refusals = [_refusal(one, wanted, place, count, now) for one in targets]
    fits = [one for one, refusal in zip(targets, refusals, strict=True) if refusal is None]
    if not fits and wanted.preference != _FIRST:
        raise next(refusal for refusal in refusals if refusal)
    return fits[0] if fits else None


def _refusal(
    one: Reservation, wanted: Wish, place: tuple[str, str, str], count: int, now: datetime
) -> EC2ClientError | None:
    """Return EC2's refusal of a launch in the reservation; None if it fits."""
    if wanted.market != (BLOCK if one.is_block else ""):
        return _wrong_market()
    if one.state(now) == "scheduled":
        return EC2ClientError("InvalidCapacityReservationState.PendingActivation", f"{one.id} is not active yet.")
    is_other = place != (one.region, one.zone, one.instance_type)
    return _exceeded() if is_other or one.free(now) < count else None


def _exceeded() -> EC2ClientError:
    return EC2ClientError("ReservationCapacityExceeded", _EXCEEDED)


def _wrong_market() -> EC2ClientError:
    return EC2ClientError("InvalidParameterValue", _MARKET)


def asking(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return RunInstances so that its launches have the request's specification."""

    def run_instances(self: Any) -> Any:
        token = _requested.set(self._get_param("CapacityReservationSpecification"))
        try:
            return run(self)
        finally:
            _requested.reset(token)

    return run_instances


def moment(given: datetime | None) -> datetime | None:
    """Return a time of a request, which moto reads without its zone, UTC."""
    return given and given.replace(tzinfo=timezone.utc)
