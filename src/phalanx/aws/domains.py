"""The domains of AWS's services, from botocore's own tables."""

from __future__ import annotations

from phalanx.aws import sessions


def of(region: str) -> str:
    """Return the domain of a region's services, such as amazonaws.com (docs/aws-behaviour.md 6.1)."""
    session = sessions.apart()
    partition = session.get_partition_for_region(region)
    rows = session.get_data("partitions")["partitions"]
    return next(row["outputs"]["dnsSuffix"] for row in rows if row["id"] == partition)
