"""Launches in bad weather: refusals, no way out, busy apt, stalls (docs/aws-behaviour.md 11.6, 11.8, 11.13, 11.18)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from moto.ec2.models.instances import Instance

from localcloud.ec2.capacity import CapacityError, capacity_message
from localcloud.ec2.placement import Request
from localcloud.nodes.machine import Machine
from localcloud.weather.sky import Weather

_PROBABILITY = 0.3
_LONGEST_WITHOUT_WAY_OUT_S = 180.0
_APT_BUSY_S = (60.0, 300.0)
_STALLS, _STALLS_WITHIN_S = 0.2, 600.0
_GROUP_TAG = "aws:autoscaling:groupName"
_VERIFICATION = (
    "Your request for accessing resources in this region is being validated, and you will not be able to launch"
    " additional resources in this region until the validation is complete. We will notify you by email once your"
    " request has been validated. While normally resolved within minutes, please allow up to 4 hours for this process"
    " to complete."
)


def group_of(request: Request) -> str:
    """Return the Auto Scaling group that launches; "RunInstances" for a launch outside of groups."""
    tags = (request.kwargs.get("tags") or {}).get("instance") or {}
    return str(tags.get(_GROUP_TAG, "RunInstances"))


def refuse_in_bad_weather(weather: Weather, request: Request) -> None:
    """Raise CapacityError for a launch that fails: the same group's next one works, or none does in this zone."""
    group = group_of(request)
    first, *others = request.zones_with_type() or ("",)
    if weather.forbids("elsewhere") and others and first == request.zone:
        weather.struck("elsewhere", f"a launch in {group} failed: {first} has no {request.instance_type}")
        raise CapacityError("InsufficientInstanceCapacity", _choose(request.instance_type, first, others))
    draw = weather.draw("launches", group)
    if draw and draw.number % 2 == 0 and draw.happens(_PROBABILITY):
        refusal = draw.choice(_refusals(request))
        weather.struck("launches", f"a launch in {group} failed: {refusal.code}")
        raise refusal


def without_way_out_s(weather: Weather, instance: Instance) -> float:
    """Return how long a new instance has no way out: 0 in good weather, and behind a NAT gateway."""
    draw = weather.draw("way-out", instance.id) if _is_public(instance) else None
    if draw is None:
        return 0.0
    without_s = draw.seconds(0, _LONGEST_WITHOUT_WAY_OUT_S)
    weather.struck("way-out", f"{instance.id} has no way out for {without_s:.1f} s")
    return without_s


def in_weather(weather: Weather, machine: Machine) -> Machine:
    """Return the machine and, of a full operating system, how long its apt is busy."""
    draw = weather.draw("packages", machine.instance_id) if machine.image else None
    busy_s = draw.seconds(*_APT_BUSY_S) if draw else 0.0
    if draw:
        weather.struck("packages", f"{machine.instance_id} can install nothing for {busy_s:.1f} s")
    return replace(machine, apt_busy_s=busy_s)


def stalls_after_s(weather: Weather, instance_id: str) -> float:
    """Return when a new instance is going to stand still for a while; 0 for one that does not."""
    draw = weather.draw("stalls", instance_id)
    if draw is None or not draw.happens(_STALLS):
        return 0.0
    delay_s = draw.seconds(0, _STALLS_WITHIN_S)
    weather.struck("stalls", f"{instance_id} is going to stand still in {delay_s:.1f} s")
    return delay_s


def _is_public(instance: Instance) -> bool:
    """Whether the default route of its subnet leads to an internet gateway."""
    tables = list(instance.ec2_backend.route_tables.values())
    routes = [route for table in tables if instance.subnet_id in table._associations.values() for route in table.routes]
    return any(route.destination_cidr_block == "0.0.0.0/0" and route.gateway is not None for route in routes)


def _choose(instance_type: str, zone: str, others: Sequence[str]) -> str:
    return (
        f"{capacity_message(instance_type, zone)} You can currently get {instance_type} capacity by not specifying an"
        f" Availability Zone in your request or choosing {', '.join(others)}."
    )


def _refusals(request: Request) -> tuple[CapacityError, ...]:
    return (
        CapacityError("InsufficientInstanceCapacity", capacity_message(request.instance_type, request.zone)),
        CapacityError("PendingVerification", _VERIFICATION),
        CapacityError("InternalError", "An internal error has occurred."),
    )
