"""The domains of AWS's partitions, by region (docs/aws-behaviour.md 6.1)."""

from __future__ import annotations

from moto.utilities.utils import get_partition

_DOMAINS = {"aws-cn": "amazonaws.com.cn", "aws-eusc": "amazonaws.eu"}


def domain(region: str) -> str:
    """Return what AWS::URLSuffix is in a region."""
    return _DOMAINS.get(get_partition(region), "amazonaws.com")
