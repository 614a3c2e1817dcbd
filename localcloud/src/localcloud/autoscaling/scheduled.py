"""Scheduled actions: Auto Scaling changes a group's sizes at a time, once (docs/aws-behaviour.md 3.40)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from moto.autoscaling.exceptions import ValidationError

from localcloud.autoscaling import activity, groups
from localcloud.autoscaling.group import Group
from localcloud.autoscaling.reconciler import Reconciler
from localcloud.clock import Timer

_SIZES = ("MinSize", "MaxSize", "DesiredCapacity")
_RECURRING = ("Recurrence", "EndTime", "TimeZone")


@dataclass
class ScheduledAction:
    """A change of a group's sizes that has not happened yet."""

    name: str
    start: datetime
    sizes: dict[str, int]
    timer: Timer | None = None

    def describe(self, group: Group) -> dict[str, Any]:
        """Describe it as DescribeScheduledActions does."""
        arn = group.arn.replace(":autoScalingGroup:", ":scheduledUpdateGroupAction:", 1)
        return {
            "AutoScalingGroupName": group.name,
            "ScheduledActionName": self.name,
            "ScheduledActionARN": f"{arn}:scheduledActionName/{self.name}",
            "Time": self.start,
            "StartTime": self.start,
            **self.sizes,
        }


def put(worker: Reconciler, region: str, wanted: Mapping[str, Any]) -> None:
    """Make or change an action. Raises ValidationError as AWS does."""
    now = worker.context.clock.now()
    group = groups.find(worker, region, wanted["AutoScalingGroupName"])
    recurring = [name for name in _RECURRING if wanted.get(name)]
    if recurring:
        raise ValidationError(f"{recurring[0]} is not supported by the local cloud's scheduled actions.")
    sizes = {name: int(wanted[name]) for name in _SIZES if wanted.get(name) is not None}
    if not sizes:
        raise ValidationError("At least one of min size, max size or desired capacity must be specified.")
    start = _moment(wanted.get("StartTime"), now)
    if start <= now:
        raise ValidationError("Given start time is in the past")
    cancel(group, wanted["ScheduledActionName"])
    action = ScheduledAction(wanted["ScheduledActionName"], start, sizes)
    delay_s = (start - now).total_seconds()
    action.timer = worker.context.clock.call_later(delay_s, _run, worker, group, action)
    group.scheduled[action.name] = action


def describe(worker: Reconciler, region: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Answer DescribeScheduledActions."""
    name, names = wanted.get("AutoScalingGroupName"), wanted.get("ScheduledActionNames")
    chosen = [groups.find(worker, region, name)] if name else [g for g in worker.groups.values() if g.region == region]
    found = [action.describe(group) for group in chosen for action in group.scheduled.values()]
    shown = [one for one in found if not names or one["ScheduledActionName"] in names]
    return {"ScheduledUpdateGroupActions": sorted(shown, key=lambda one: one["StartTime"]), "NextToken": None}


def delete(worker: Reconciler, region: str, wanted: Mapping[str, Any]) -> None:
    """Delete an action. Raises ValidationError for one that has run or never was."""
    group = groups.find(worker, region, wanted["AutoScalingGroupName"])
    if not cancel(group, wanted["ScheduledActionName"]):
        raise ValidationError("Scheduled action name not found")


def cancel(group: Group, name: str) -> bool:
    """Remove an action from the group; return whether there was one."""
    action = group.scheduled.pop(name, None)
    if action is not None and action.timer is not None:
        action.timer.cancel()
    return action is not None


def _run(worker: Reconciler, group: Group, action: ScheduledAction) -> None:
    """Change the sizes. An action that runs once is gone afterwards, and does nothing while it is suspended."""
    with worker.lock:
        if group.scheduled.get(action.name) is not action:
            return
        del group.scheduled[action.name]
        if group.deleting or "ScheduledActions" in group.suspended:
            return
        before = group.desired
        minimum = action.sizes.get("MinSize", group.minimum)
        maximum = action.sizes.get("MaxSize", group.maximum)
        desired = action.sizes.get("DesiredCapacity", max(minimum, min(before, maximum)))
        group.set_bounds(minimum, maximum, desired)
        group.why = activity.scheduled(worker.context.clock.now(), (minimum, maximum, desired), before)
        worker.resized(group)


def _moment(given: Any, now: datetime) -> datetime:
    """Return the start; without one it is now, which is refused for an action that does not recur."""
    if given is None:
        return now
    moment = given if isinstance(given, datetime) else datetime.fromisoformat(str(given).replace("Z", "+00:00"))
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
