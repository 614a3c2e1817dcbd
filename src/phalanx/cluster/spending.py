"""What a cluster has cost so far and costs now, the lease that its lease and budget leave it, and its removal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from phalanx.aws import lustre_file_systems, stacks
from phalanx.aws.model import Running, StackState
from phalanx.plan import money
from phalanx.plan.money import Cost, Limits
from phalanx.plan.vpc_endpoints import ENDPOINTS
from phalanx.spec.spec import ClusterSpec

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws


def cost(cloud: Aws, state: StackState, head: Mapping[str, Any] | None) -> Cost:
    """Return the cost of a cluster, from its use until now; `head` is that of its spec. Raises CloudError."""
    now_s = time.time()
    file_system, is_lustre = state.outputs.get("SharedFileSystem", ""), "Lustre" in state.outputs
    use = cloud.machines.use(state.name, "" if is_lustre else file_system, now_s)
    lustre = lustre_file_systems.usd_per_hour(cloud, state.name, file_system) if is_lustre else 0.0
    worker_type = state.parameters.get("InstanceType", "")
    head_type = head["type"] if head else worker_type
    age_hours = (now_s - state.created_s) / 3600
    prices, endpoints = cloud.site.prices((head_type, worker_type)), _interface_endpoints(cloud, state)
    in_vpc = "Vpc" in state.parameters
    return money.cost(cloud.name, head_type, worker_type, use, age_hours, in_vpc, endpoints, prices, lustre)


def _interface_endpoints(cloud: Aws, state: StackState) -> int | None:
    """Return how many endpoints cost by the hour: those of a cluster whose head has no public address; else None."""
    if not state.outputs or "HeadAddress" in state.outputs:
        return None
    made = [
        one.logical_id
        for one in stacks.resources(cloud, state.stack_id)
        if one.resource_type == "AWS::EC2::VPCEndpoint"
    ]
    return len(set(made) - ENDPOINTS.keys())


def budget_pays_until(cloud: Aws, state: StackState, spec: ClusterSpec, nodes: int) -> float | None:
    """Return until when the budget pays this many nodes, now if it is spent; None without a budget or a price."""
    spent = cost(cloud, state, spec.head).so_far_usd
    rate = money.usd_per_hour(spec, nodes, cloud.site.prices(money.types_of(spec)), _interface_endpoints(cloud, state))
    if spec.budget_usd is None or spent is None or not rate:
        return None
    return time.time() + max(0.0, spec.budget_usd - spent) / rate * 3600


def limits_now(cloud: Aws, state: StackState, spec: ClusterSpec, gpus: int, nodes: int) -> Limits:
    """Return the limits of a cluster that runs with so many nodes from now on. Raises SpecError for a spent budget."""
    spent = cost(cloud, state, spec.head).so_far_usd if spec.budget else None
    sized = replace(spec, nodes=nodes, min=min(spec.min, nodes))
    prices = cloud.site.prices(money.types_of(sized)) if spec.budget else money.TABLE
    endpoints = _interface_endpoints(cloud, state) if spec.budget else None
    return money.limits(sized, gpus, spent or 0.0, prices, endpoints)


def removed_at_s(state: StackState, running: Running | None) -> float | None:
    """Return when the function of the stack has it deleted, in seconds since the epoch; None if it does not.

    It counts from the end of the last node, and again from an update of the stack.
    """
    after = state.outputs.get("DownAfter")
    if not after or running is None or running.idle_since_s is None:
        return None
    since = max(running.idle_since_s, state.updated_s or state.created_s)
    return max(since + float(after), running.kept_until_s)
