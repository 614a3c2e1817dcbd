"""Where the next page of a list begins, which each service says in its own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.errors import CloudError

# How services name the token in their answers, and in the request for the next page.
_TOKENS = {
    "NextToken": "NextToken",
    "PaginationToken": "PaginationToken",
    "nextToken": "nextToken",
    "Marker": "Marker",
    "NextMarker": "Marker",
    "NextContinuationToken": "ContinuationToken",
    "LastEvaluatedTableName": "ExclusiveStartTableName",
}
# EFS repeats the request's (docs/aws-behaviour.md 4.22).
_REPEATED = ("efs", "Marker")


def token(service: str, page: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the argument that requests the page after this one, which `before` requested; {} after the last page.

    Raises CloudError if that would be the same page again.
    """
    found = {sent: page[name] for name, sent in _TOKENS.items() if page.get(name) and (service, name) != _REPEATED}
    if found and found == before:
        raise CloudError(
            f"{service} lists the same page again and again", "Try again; AWS may have a fault.", code="endless-list"
        )
    return found
