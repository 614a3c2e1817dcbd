"""The activities of an Auto Scaling group, newest first: launches, terminations and failures of six weeks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phalanx.aws.model import ScalingActivity
from phalanx.aws.refusals import is_gone
from phalanx.errors import CloudError

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws


def of(api: Aws, group: str, deleted: bool = False) -> list[ScalingActivity]:
    """Return the group's activities; none if there is no such group (yet).

    With `deleted`, also those of groups of this name that were deleted (docs/aws-behaviour.md 3.8).
    """
    which: dict[str, Any] = {"AutoScalingGroupName": group, **({"IncludeDeletedGroups": True} if deleted else {})}
    try:
        found = api.pages("autoscaling", "describe_scaling_activities", "Activities", **which)
        return [_activity(one) for one in found]
    except CloudError as error:
        if is_gone(error.__cause__):
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
