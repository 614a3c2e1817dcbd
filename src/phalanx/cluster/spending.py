"""What a cluster has cost so far and costs now, and the lease that its lease and budget leave it."""

from __future__ import annotations

import time
from dataclasses import replace

from phalanx.clouds.protocol import Cloud, StackState
from phalanx.plan import money
from phalanx.plan.money import Cost, Limits
from phalanx.spec.spec import ClusterSpec


def cost(cloud: Cloud, state: StackState) -> Cost:
    """Return the cost of a cluster, from its use until now. Raises CloudError."""
    now_s = time.time()
    use = cloud.use(state.name, state.outputs.get("SharedFileSystem", ""), now_s)
    return money.cost(cloud.name, state.parameters.get("InstanceType", ""), use, (now_s - state.created_s) / 3600)


def limits_now(cloud: Cloud, state: StackState, spec: ClusterSpec, gpus: int, nodes: int) -> Limits:
    """Return the limits of a cluster that runs with so many nodes from now on. Raises SpecError for a spent budget."""
    spent = cost(cloud, state).so_far_usd if spec.budget else None
    sized = replace(spec, nodes=nodes, min=min(spec.min, nodes))
    return money.limits(sized, gpus, spent or 0.0)
