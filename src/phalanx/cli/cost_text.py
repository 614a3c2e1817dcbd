"""What a cluster costs, in words: so far, now, and without any node."""

from __future__ import annotations

from typing import Any

from phalanx.spec.cloud_names import is_local


def whole(cloud: str, cost: dict[str, Any], stopped: bool) -> str:
    """Describe the cost so far and now; `cost` has the fields of money.Cost."""
    if is_local(cloud):
        return "nothing"
    if cost["so_far_usd"] is None:
        return now(cloud, cost, stopped)
    return f"about ${cost['so_far_usd']:.2f} so far ({cost['source']}); now {now(cloud, cost, stopped)}"


def now(cloud: str, cost: dict[str, Any], stopped: bool) -> str:
    """Describe what costs at this moment, and what of it remains without any node."""
    if is_local(cloud):
        return "nothing"
    still = _without_nodes(cost)
    if cost["now_usd_per_hour"] is None:
        return f"the price of the nodes is not known; {still}"
    return still if stopped else f"${cost['now_usd_per_hour']:.2f} an hour, of which {still}"


def _without_nodes(cost: dict[str, Any]) -> str:
    each_hour = f"{cost['paid']} ${cost['idle_usd_per_hour']:.3f} an hour"
    if cost["lustre_usd_per_hour"]:
        return each_hour
    return f"{each_hour}, and the data in EFS ${cost['storage_usd_per_month']:.2f} a month"
