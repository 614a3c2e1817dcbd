"""The activities of an Auto Scaling group, newest first: launches, terminations and failures of six weeks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from phalanx.aws.model import ScalingActivity
from phalanx.aws.refusals import is_gone
from phalanx.errors import CloudError


class Api(Protocol):
    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]: ...


def of(api: Api, group: str, deleted: bool = False) -> list[ScalingActivity]:
    """Return the group's activities; none if there is no such group (yet).

    With `deleted`, also those of groups of this name that were deleted (docs/aws-behaviour.md 3.8).
    """
    which: dict[str, Any] = {"AutoScalingGroupName": group, **({"IncludeDeletedGroups": True} if deleted else {})}
    try:
        found = api.pages("autoscaling", "describe_scaling_activities", "Activities", **which)
        return [_activity(one) for one in found]
    except CloudError as error:
        if isinstance(error.__cause__, Exception) and is_gone(error.__cause__):
            return []
        raise


def _activity(one: dict[str, Any]) -> ScalingActivity:
    end = one.get("EndTime")
    return ScalingActivity(
        began_s=one["StartTime"].timestamp(),
        ended_s=end.timestamp() if end else None,
        description=one["Description"],
        cause=one.get("Cause", ""),
        status=one["StatusCode"],
        message=one.get("StatusMessage") or "",
    )
