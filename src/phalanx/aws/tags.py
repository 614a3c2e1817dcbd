"""The tag that says which cluster a resource is of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from phalanx.spec.own_tags import CLUSTER_TAG

# Of a stack (CreateStack, StackName).
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,127}")


def is_name(text: str) -> bool:
    """Whether a cluster can have this name. Everyone who may tag anything in the account writes what a tag says."""
    return bool(_NAME.fullmatch(text))


def cluster_of(described: Mapping[str, Any]) -> str:
    """Return the cluster of a resource, as its service describes it; "" without the tag, or with no valid name."""
    found = (tag["Value"] for tag in described.get("Tags", []) if tag["Key"] == CLUSTER_TAG)
    return next(filter(is_name, found), "")


def is_of(described: Mapping[str, Any], cluster: str) -> bool:
    return cluster_of(described) == cluster


def filters(cluster: str) -> list[dict[str, Any]]:
    """Return the filter of EC2 and Auto Scaling that chooses a cluster's resources."""
    return [{"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster]}]
