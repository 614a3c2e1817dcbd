"""How a cluster's machines are bought: on demand, at spot prices, or from a reservation or a Capacity Block. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.counts import counted
from phalanx.errors import SpecError
from phalanx.node.workers_group import nodes_of, workers_of
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_limits import OWN_GROUP

ON_DEMAND, SPOT, RESERVED = "on_demand", "spot", "reserved"


@dataclass(frozen=True)
class Reservation:
    """A Capacity Reservation as EC2 describes it; `is_block`: a Capacity Block, which begins and ends at set times."""

    reservation_id: str
    is_block: bool
    state: str
    instance_type: str
    zone: str
    free: int
    begins: str = ""
    ends: str = ""


def bought(spec: ClusterSpec, role: str) -> str:
    """Return how machines of a role, head or worker, are bought.

    A head is never a spot instance, whose end would end the jobs; a head of a type of its own is in no reservation.
    """
    if spec.capacity == "spot":
        return SPOT if role == "worker" else ON_DEMAND
    if spec.reservation and not (role == "head" and spec.head):
        return RESERVED
    return ON_DEMAND


def refuse_impossible(spec: ClusterSpec, reservation: Reservation | None) -> None:
    """Raise SpecError if the reservation can't hold the cluster's smallest form (docs/aws-behaviour.md 2.14, 2.37)."""
    if not spec.reservation:
        return
    if reservation is None:
        raise SpecError(
            "capacity: only EC2 knows a reservation", "Plan with credentials and a connection.", code="cloud-not-asked"
        )
    _refuse_other(spec, reservation)
    _refuse_group(spec, reservation)
    least = workers_of(spec.min) if spec.head else spec.min
    if reservation.free < least:
        raise SpecError(
            f"capacity: {spec.reservation} has {counted(reservation.free, 'instance')} free, and at least {least} are "
            "needed",
            _nearest(spec, reservation.free),
            code="reservation-unsuited",
        )


def _nearest(spec: ClusterSpec, free: int) -> str:
    """Name the nearest cluster that a reservation with this many free instances can hold."""
    if not free:
        return "Wait until one of its instances ends, or name another reservation."
    nodes = nodes_of(free) if spec.head else free
    return f"The nearest that fits: `nodes: {nodes}` with `min: {nodes}`; or name another reservation."


def _refuse_other(spec: ClusterSpec, reservation: Reservation) -> None:
    if reservation.state != "active":
        begins = f"; it begins {reservation.begins}" if reservation.begins else ""
        raise SpecError(
            f"capacity: {spec.reservation} is {reservation.state}{begins}",
            "Run `up` while it is active.",
            code="reservation-unsuited",
        )
    if reservation.instance_type != spec.type:
        raise SpecError(
            f"capacity: {spec.reservation} holds {reservation.instance_type}, and type is {spec.type}",
            f"Write `type: {reservation.instance_type}`.",
            code="reservation-unsuited",
        )
    if spec.zones and reservation.zone not in spec.zones:
        raise SpecError(
            f"capacity: {spec.reservation} is in {reservation.zone}, and zones has {' and '.join(spec.zones)}",
            f"Write `zones: [{reservation.zone}]`, or leave it out.",
            code="reservation-unsuited",
        )


def _refuse_group(spec: ClusterSpec, reservation: Reservation) -> None:
    if spec.placement and reservation.is_block:
        raise SpecError(
            f"placement: {spec.reservation} is a Capacity Block, which no placement group can be used with",
            "Remove the line: the instances of a block are close together anyway.",
            code="placement-unsuited",
        )
    if spec.placement == OWN_GROUP:
        raise SpecError(
            f"placement: {spec.reservation} was not made in a placement group of this cluster",
            "Name the group that the reservation was made in, or remove the line.",
            code="placement-unsuited",
        )


def described(spec: ClusterSpec, reservation: Reservation | None) -> str:
    """Describe how the machines are bought; "" for all on demand."""
    if spec.capacity == "spot":
        return "spot instances as workers, the head on demand"
    if not reservation:
        return f"reservation {spec.reservation}" if spec.reservation else ""
    kind = "Capacity Block" if reservation.is_block else "reservation"
    ends = f", until {reservation.ends}" if reservation.ends else ""
    return f"{kind} {reservation.reservation_id}: {counted(reservation.free, 'instance')} free{ends}"
