"""Which failed creations were a shortage of machines, and where AWS may have others: the next zone, the next type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from phalanx.plan.each_type import single
from phalanx.plan.plan import Plan, make_plan
from phalanx.spec.spec import ClusterSpec

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

# EC2's and Auto Scaling's words (docs/aws-behaviour.md 2.17, 2.18). Quotas and denials are no shortage: they hold in
# every zone, and the user should hear of them.
_SHORTAGE = re.compile(
    r"do not have sufficient \S+ capacity|no Spot capacity available|Insufficient capacity|UnfulfillableCapacity"
    r"|Insufficient(Instance|Host|ReservedInstance)Capacity"
)
_REASONS = " are needed: "


def is_shortage(failure: str) -> bool:
    """Whether a creation failed for a lack of capacity alone: every missing node is missing for that reason."""
    _, found, reasons = failure.rpartition(_REASONS)
    return all(_SHORTAGE.search(reason) for reason in (reasons if found else failure).split("; "))


def plans(cloud: Aws, spec: ClusterSpec) -> Iterator[Plan]:
    """Yield a plan for each of the spec's types in each of its zones that offers the type.

    Raises SpecError with the mistakes of all types, before the first plan.
    """
    whole = make_plan(spec, cloud.site.facts(spec, ""))
    first, *others = single(spec)
    yield from _in_each_zone(replace(whole, spec=first, alternatives=()))
    for one in others:
        # Looked up again: the attempts before took minutes.
        yield from _in_each_zone(make_plan(one, cloud.site.facts(one, "")))


def _in_each_zone(plan: Plan) -> Iterator[Plan]:
    return (replace(plan, zone=zone) for zone in plan.zones)


def plans_after(cloud: Aws, spec: ClusterSpec, instance_type: str, zone: str) -> Iterator[Plan]:
    """Yield the plans that come after the one of this type and zone."""
    following = plans(cloud, spec)
    if any((plan.spec.type, plan.zone) == (instance_type, zone) for plan in following):
        yield from following


def place(plan: Plan) -> str:
    """Describe what a plan asks of which zone."""
    return f"{plan.spec.type} in {plan.zone}"
