"""Which failed creations were a shortage of machines, and where AWS may have others: the next zone, the next type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from phalanx.clouds.protocol import Cloud
from phalanx.plan.plan import Plan, make_plan
from phalanx.spec.spec import ClusterSpec

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


def plans(cloud: Cloud, spec: ClusterSpec) -> Iterator[Plan]:
    """Yield a plan for each of the spec's types in each of its zones that offers the type. Raises SpecError."""
    for one in spec.types:
        chosen = replace(spec, type=one, other_types=())
        plan = make_plan(chosen, cloud.facts(chosen, ""))
        yield from (replace(plan, zone=zone) for zone in plan.zones)


def plans_after(cloud: Cloud, spec: ClusterSpec, instance_type: str, zone: str) -> Iterator[Plan]:
    """Yield the plans that come after the one of this type and zone."""
    following = plans(cloud, spec)
    if any((plan.spec.type, plan.zone) == (instance_type, zone) for plan in following):
        yield from following


def place(plan: Plan) -> str:
    """Describe what a plan asks of which zone."""
    return f"{plan.spec.type} in {plan.zone}"
