"""The Auto Scaling API: every action on groups, answered from the local cloud's groups instead of moto's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moto.autoscaling.exceptions import AutoscalingClientError, ValidationError
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult, EmptyResult

from localcloud.autoscaling import activity, groups, scheduled
from localcloud.autoscaling.group import Group
from localcloud.autoscaling.notify import subscribe
from localcloud.autoscaling.reconciler import Reconciler

Handler = Callable[[Reconciler, str, dict[str, Any]], Any]

PAGE_SIZE = 100


def create_group(worker: Reconciler, region: str, wanted: dict[str, Any]) -> None:
    groups.create(worker, region, wanted["AutoScalingGroupName"], wanted)


def update_group(worker: Reconciler, region: str, wanted: dict[str, Any]) -> None:
    groups.update(worker, region, wanted["AutoScalingGroupName"], wanted)


def delete_group(worker: Reconciler, region: str, wanted: dict[str, Any]) -> None:
    groups.delete(worker, region, wanted["AutoScalingGroupName"], force=bool(wanted.get("ForceDelete")))


def describe_groups(worker: Reconciler, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    names = wanted.get("AutoScalingGroupNames")
    found = [g for g in worker.groups.values() if g.region == region and (not names or g.name in names)]
    for condition in wanted.get("Filters") or []:
        found = [group for group in found if _has_tag(group, condition)]
    page, token = _page(found, wanted)
    return {"AutoScalingGroups": [group.describe() for group in page], "NextToken": token}


def describe_instances(worker: Reconciler, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    ids = wanted.get("InstanceIds")
    found = [
        {**member.describe(), "AutoScalingGroupName": group.name, "HealthStatus": member.health.upper()}
        for group in worker.groups.values()
        if group.region == region
        for member in group.members.values()
        if not ids or member.id in ids
    ]
    page, token = _page(found, wanted)
    return {"AutoScalingInstances": page, "NextToken": token}


def describe_activities(worker: Reconciler, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    name, ids = wanted.get("AutoScalingGroupName"), wanted.get("ActivityIds")
    past = worker.past if wanted.get("IncludeDeletedGroups") else {}
    if name and (region, name) not in past:
        groups.find(worker, region, name)
    chosen = [*((place, group.activities) for place, group in worker.groups.items()), *past.items()]
    of_groups = [a for (where, group), did in chosen if where == region and name in (None, group) for a in did]
    found = [one for one in of_groups if not ids or one.id in ids]
    found.sort(key=lambda one: one.start, reverse=True)
    page, token = _page(found, wanted)
    return {"Activities": [one.describe() for one in page], "NextToken": token}


def describe_tags(worker: Reconciler, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    tags = [tag for group in worker.groups.values() if group.region == region for tag in group.described_tags()]
    fields = {"auto-scaling-group": "ResourceId", "key": "Key", "value": "Value"}
    for condition in wanted.get("Filters") or []:
        field = fields.get(condition["Name"])
        tags = [tag for tag in tags if field is None or tag[field] in condition["Values"]]
    return {"Tags": tags, "NextToken": None}


def put_tags(worker: Reconciler, region: str, wanted: dict[str, Any]) -> None:
    for tag in wanted.get("Tags", []):
        groups.find(worker, region, tag["ResourceId"]).set_tags([tag])


def delete_tags(worker: Reconciler, region: str, wanted: dict[str, Any]) -> None:
    for tag in wanted.get("Tags", []):
        group = groups.find(worker, region, tag["ResourceId"])
        group.tags = [kept for kept in group.tags if kept["Key"] != tag["Key"]]


def set_desired(worker: Reconciler, region: str, wanted: dict[str, Any]) -> None:
    group = groups.find(worker, region, wanted["AutoScalingGroupName"], is_changed=True)
    before, desired = group.desired, int(wanted["DesiredCapacity"])
    group.set_desired(desired)
    if desired != before:
        group.why = activity.desired_set(worker.context.clock.now(), before, desired)
        worker.resized(group)


def terminate_instance(worker: Reconciler, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    group = groups.find_member(worker, region, wanted["InstanceId"])
    member = group.member(wanted["InstanceId"])
    before = len(group.active())
    if wanted.get("ShouldDecrementDesiredCapacity"):
        _decrement(group)
    else:
        group.replacing += 1
    after = before - bool(wanted.get("ShouldDecrementDesiredCapacity"))
    worker.end(group, member, activity.user_terminated(worker.context.clock.now(), member.id, before, after))
    return {"Activity": member.activity.describe()}


def protect(worker: Reconciler, region: str, wanted: dict[str, Any]) -> None:
    group = groups.find(worker, region, wanted["AutoScalingGroupName"])
    members = [group.member(instance_id) for instance_id in wanted.get("InstanceIds", [])]
    for member in members:
        member.protected = bool(wanted.get("ProtectedFromScaleIn"))
    group.stuck = False
    worker.touch(group)


def set_health(worker: Reconciler, region: str, wanted: dict[str, Any]) -> None:
    health = wanted["HealthStatus"]
    if health not in ("Healthy", "Unhealthy"):
        raise ValidationError(f"Valid instance health states are: [Healthy, Unhealthy], not {health}")
    group = groups.find_member(worker, region, wanted["InstanceId"])
    group.member(wanted["InstanceId"]).health = health
    worker.touch(group)


def suspend(worker: Reconciler, region: str, wanted: dict[str, Any]) -> None:
    groups.find(worker, region, wanted["AutoScalingGroupName"]).suspend(wanted.get("ScalingProcesses") or [])


def resume(worker: Reconciler, region: str, wanted: dict[str, Any]) -> None:
    group = groups.find(worker, region, wanted["AutoScalingGroupName"])
    group.resume(wanted.get("ScalingProcesses") or [])
    worker.touch(group)


def put_notifications(worker: Reconciler, region: str, wanted: dict[str, Any]) -> None:
    group = groups.find(worker, region, wanted["AutoScalingGroupName"])
    subscribe(worker.context, group, wanted["TopicARN"], wanted["NotificationTypes"])


def delete_notifications(worker: Reconciler, region: str, wanted: dict[str, Any]) -> None:
    groups.find(worker, region, wanted["AutoScalingGroupName"]).notifications.pop(wanted["TopicARN"], None)


def describe_notifications(worker: Reconciler, region: str, wanted: dict[str, Any]) -> dict[str, Any]:
    names = wanted.get("AutoScalingGroupNames")
    found = [
        {"AutoScalingGroupName": group.name, "TopicARN": topic, "NotificationType": kind}
        for group in worker.groups.values()
        if group.region == region and (not names or group.name in names)
        for topic, kinds in group.notifications.items()
        for kind in kinds
    ]
    return {"NotificationConfigurations": found}


HANDLERS: dict[str, Handler] = {
    "create_auto_scaling_group": create_group,
    "update_auto_scaling_group": update_group,
    "delete_auto_scaling_group": delete_group,
    "describe_auto_scaling_groups": describe_groups,
    "describe_auto_scaling_instances": describe_instances,
    "describe_scaling_activities": describe_activities,
    "describe_tags": describe_tags,
    "create_or_update_tags": put_tags,
    "delete_tags": delete_tags,
    "set_desired_capacity": set_desired,
    "terminate_instance_in_auto_scaling_group": terminate_instance,
    "set_instance_protection": protect,
    "set_instance_health": set_health,
    "suspend_processes": suspend,
    "resume_processes": resume,
    "put_notification_configuration": put_notifications,
    "delete_notification_configuration": delete_notifications,
    "put_scheduled_update_group_action": scheduled.put,
    "describe_scheduled_actions": scheduled.describe,
    "delete_scheduled_action": scheduled.delete,
    "describe_notification_configurations": describe_notifications,
}

# moto lacks these methods.
_ADDED = (
    "put_notification_configuration",
    "delete_notification_configuration",
    "describe_notification_configurations",
)

PATCHED = tuple(
    f"moto.autoscaling.responses.AutoScalingResponse.{name}"
    for name in (*HANDLERS, "create_launch_configuration")
    if name not in _ADDED
)


def install(worker: Reconciler) -> None:
    """Answer the API from `worker`'s groups."""
    for name, handler in HANDLERS.items():
        setattr(AutoScalingResponse, name, _answering(worker, handler))
    AutoScalingResponse.create_launch_configuration = _refuse_launch_configuration


def _answering(worker: Reconciler, handler: Handler) -> Callable[[AutoScalingResponse], ActionResult]:
    def answer(self: AutoScalingResponse) -> ActionResult:
        with worker.lock:
            result = handler(worker, self.region, self._get_params())
        return EmptyResult() if result is None else ActionResult(result)

    return answer


def _refuse_launch_configuration(self: AutoScalingResponse) -> ActionResult:  # noqa: ARG001
    # New accounts can no longer create them: docs/aws-behaviour.md 3.21.
    raise AutoscalingClientError(
        "UnsupportedOperation",
        "The Launch Configuration creation operation is not available in your account. Use launch templates to create"
        " configuration templates for your Auto Scaling groups.",
    )


def _decrement(group: Group) -> None:
    if group.desired - 1 < group.minimum:
        raise ValidationError(
            f"Currently, desiredSize equals minSize ({group.minimum}). Terminating instance without replacement will"
            " violate group's min size constraint. Either set shouldDecrementDesiredCapacity flag to false or lower"
            " group's min size."
        )
    group.desired -= 1


def _has_tag(group: Group, condition: dict[str, Any]) -> bool:
    name, values = condition["Name"], condition.get("Values", [])
    tags = {tag["Key"]: tag.get("Value", "") for tag in group.tags}
    if name == "tag-key":
        return any(value in tags for value in values)
    if name == "tag-value":
        return any(value in tags.values() for value in values)
    return name.startswith("tag:") and tags.get(name[4:]) in values


def _page(rows: list[Any], wanted: dict[str, Any]) -> tuple[list[Any], str | None]:
    start = int(wanted.get("NextToken") or 0)
    end = start + min(int(wanted.get("MaxRecords") or PAGE_SIZE), PAGE_SIZE)
    return rows[start:end], (str(end) if end < len(rows) else None)
