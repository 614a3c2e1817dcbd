"""The tag that says which cluster a resource is of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.spec.own_tags import CLUSTER_TAG


def cluster_of(described: Mapping[str, Any]) -> str:
    """Return the cluster of a resource, as its service describes it; "" without the tag."""
    return next((tag["Value"] for tag in described.get("Tags", []) if tag["Key"] == CLUSTER_TAG), "")


def is_of(described: Mapping[str, Any], cluster: str) -> bool:
    return cluster_of(described) == cluster


def filters(cluster: str) -> list[dict[str, Any]]:
    """Return the filter of EC2 and Auto Scaling that chooses a cluster's resources."""
    return [{"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster]}]
