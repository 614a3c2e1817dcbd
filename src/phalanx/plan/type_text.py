"""Describe the types of a plan: the nodes, the zones that offer them, and what another type would cost."""

from __future__ import annotations

from typing import Any

from phalanx.counts import counted
from phalanx.node.workers_group import workers_of
from phalanx.plan.plan import Plan
from phalanx.spec.cloud_names import is_local


def nodes(plan: Plan) -> str:
    """Describe how many nodes there are of which type."""
    workers = workers_of(plan.spec.nodes)
    if plan.spec.head:
        return f"1 × {plan.spec.head['type']}: the head, which does not train; {workers} × {plan.spec.type}: workers"
    return (
        f"1 × {plan.spec.type}: the head"
        if not workers
        else f"{plan.spec.nodes} × {plan.spec.type}: the head and {counted(workers, 'worker')}"
    )


def sizes(plan: Plan) -> str:
    """Describe what each node has."""
    gpus = f", {counted(plan.gpus, 'GPU')}" if plan.gpus else ""
    memory = f", {plan.facts.memory_gib:g} GiB" if plan.facts.memory_gib else ""
    return f"{counted(plan.vcpus, 'vCPU')}{gpus}{memory}, {plan.facts.architecture}, {counted(plan.slots, 'slot')}"


def offered(plan: Plan) -> list[tuple[str, str]]:
    """Return a row for each type with the zones that offer it; none if nobody asked the cloud."""
    rows = [(one.spec.type, _zones(one)) for one in (plan, *plan.alternatives)]
    named = [(f"{kind}: " if plan.alternatives else "", zones) for kind, zones in rows if zones]
    return [("offered in", f"{kind}{', '.join(zones)}") for kind, zones in named]


def otherwise(plan: Plan) -> str:
    """Describe what `up` tries where AWS has no capacity."""
    others = [f"the same in {zone}" for zone in plan.zones if zone != plan.zone]
    types = [f"{one.spec.type}{_price(one)}{_limit(one, plan)}" for one in plan.alternatives]
    return ", then ".join([*others, *(types or plan.spec.other_types)])


def as_dicts(plan: Plan) -> list[dict[str, Any]]:
    """Return what a plan says of each type, for JSON; zones are None if nobody asked the cloud."""
    return [
        {
            "type": one.spec.type,
            "zones": _zones(one),
            "image_parameter": one.image_parameter,
            "architecture": one.facts.architecture,
            "vcpus_per_node": one.vcpus,
            "gpus_per_node": one.gpus,
            "slots_per_node": one.slots,
            "cost_usd_per_hour": one.cost_usd_per_hour,
            "cost_usd_of_lease": cost_of_lease(one),
            "lease_s": one.limits.lease_s,
        }
        for one in (plan, *plan.alternatives)
    ]


def cost_of_lease(plan: Plan) -> float | None:
    """Return the cost of all nodes and the network until the lease ends; None without a lease or a price."""
    if not plan.limits.lease_s or plan.cost_usd_per_hour is None:
        return None
    return round(plan.cost_usd_per_hour * plan.limits.lease_s / 3600, 2)


def time(seconds: int) -> str:
    """Return a time in words, such as 1 h 30 min."""
    days = seconds // 86400 if seconds > 48 * 3600 else 0
    hours, minutes, rest = seconds // 3600 - 24 * days, seconds // 60 % 60, seconds % 60
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (rest if seconds < 3600 else 0, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def _zones(plan: Plan) -> list[str] | None:
    if plan.facts.not_asked or is_local(plan.spec.cloud):
        return None
    return sorted(plan.facts.zones)


def _price(plan: Plan) -> str:
    if is_local(plan.spec.cloud):
        return ""
    price = plan.cost_usd_per_hour
    return " at an unknown price" if price is None else f" at about ${price:.2f} an hour"


def _limit(plan: Plan, first: Plan) -> str:
    """Describe the lease if it is not that of the first type."""
    if plan.limits.lease_s == first.limits.lease_s:
        return ""
    return f", stopped after {time(plan.limits.lease_s)}" if plan.limits.lease_s else ", without a lease"
