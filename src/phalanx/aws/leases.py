"""The sizes of a cluster's groups, and when a scheduled action lowers them to 0: read, moved, and undone by `up`.

All of it goes with the user's own rights. No role of a node may schedule anything or change a group's greatest size.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from phalanx.aws.model import Running
from phalanx.node.workers_group import workers_of
from phalanx.spec.own_tags import KEEP_TAG

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

HEAD, WORKERS = "head", "workers"
# Of an action that phalanx makes itself; one that the stack made keeps its name.
_NAME = "phalanx-lease"
_NOTHING = {"MinSize": 0, "MaxSize": 0, "DesiredCapacity": 0}


def running(api: Aws, cluster: str) -> Running | None:
    """Return the state of the cluster's groups; None if it has none, or not yet."""
    groups, head = _groups(api, cluster), f"{cluster}-{HEAD}"
    if head not in groups:
        return None
    ends = [action["StartTime"].timestamp() for action in _actions(api, head)]
    sizes = [group["DesiredCapacity"] for group in groups.values()]
    return Running(
        nodes=sum(sizes),
        stopped=groups[head]["DesiredCapacity"] == 0,
        end_s=min(ends, default=None),
        idle_since_s=_idle_since_s(api, groups),
        kept_until_s=_kept_until_s(groups[head]),
    )


def _idle_since_s(api: Aws, groups: dict[str, dict[str, Any]]) -> float | None:
    """Return when the last instance had ended, 0 if that was more than six weeks ago; None while there is one."""
    if any(group["DesiredCapacity"] or group["Instances"] for group in groups.values()):
        return None
    last: list[float] = [0.0]
    for name in groups:
        found = api.call("autoscaling", "describe_scaling_activities", AutoScalingGroupName=name, MaxRecords=1)
        for activity in found["Activities"]:
            if not activity.get("EndTime"):
                return None
            last.append(activity["EndTime"].timestamp())
    return max(last)


def _kept_until_s(group: dict[str, Any]) -> float:
    tags = {tag["Key"]: tag["Value"] for tag in group.get("Tags", [])}
    value = tags.get(KEEP_TAG, "")
    return float(value) if value.isdecimal() else 0.0


def keep_until(api: Aws, cluster: str, at_s: float) -> None:
    """Have a stopped cluster not removed before this time, in seconds since the epoch."""
    of_group = {"ResourceId": f"{cluster}-{HEAD}", "ResourceType": "auto-scaling-group", "PropagateAtLaunch": False}
    api.call("autoscaling", "create_or_update_tags", Tags=[{**of_group, "Key": KEEP_TAG, "Value": str(int(at_s))}])


def outdated(api: Aws, cluster: str) -> list[str]:
    """Return the instances that were launched with another version of the launch template than their group has now."""
    return [
        instance["InstanceId"]
        for group in _groups(api, cluster).values()
        for instance in group["Instances"]
        if instance.get("LaunchTemplate", {}).get("Version") != group["LaunchTemplate"]["Version"]
    ]


def end_at(api: Aws, cluster: str, at_s: float | None) -> None:
    """Have both groups lowered to 0 at a time, in seconds since the epoch, instead of at another; None: never."""
    for role in (HEAD, WORKERS):
        group = f"{cluster}-{role}"
        names = [action["ScheduledActionName"] for action in _actions(api, group)]
        for name in names if at_s is None else names or [_NAME]:
            of_group = {"AutoScalingGroupName": group, "ScheduledActionName": name}
            if at_s is None:
                api.call("autoscaling", "delete_scheduled_action", **of_group)
            else:
                start = datetime.fromtimestamp(at_s, timezone.utc)
                api.call("autoscaling", "put_scheduled_update_group_action", **of_group, StartTime=start, **_NOTHING)


def allow(api: Aws, cluster: str, nodes: int) -> None:
    """Let the cluster have so many nodes at most."""
    most = workers_of(nodes)
    api.call("autoscaling", "update_auto_scaling_group", AutoScalingGroupName=f"{cluster}-{WORKERS}", MaxSize=most)


def start(api: Aws, cluster: str, nodes: int) -> None:
    """Start so many nodes of a stopped cluster."""
    for role, size in {WORKERS: workers_of(nodes), HEAD: 1}.items():
        api.call(
            "autoscaling",
            "update_auto_scaling_group",
            AutoScalingGroupName=f"{cluster}-{role}",
            MinSize=0,
            MaxSize=size,
            DesiredCapacity=size,
        )


def _groups(api: Aws, cluster: str) -> dict[str, dict[str, Any]]:
    """Return the cluster's groups by name."""
    names = [f"{cluster}-{role}" for role in (HEAD, WORKERS)]
    answer = api.call("autoscaling", "describe_auto_scaling_groups", AutoScalingGroupNames=names)
    return {group["AutoScalingGroupName"]: group for group in answer["AutoScalingGroups"]}


def _actions(api: Aws, group: str) -> list[dict[str, Any]]:
    answer = api.call("autoscaling", "describe_scheduled_actions", AutoScalingGroupName=group)
    return [action for action in answer["ScheduledUpdateGroupActions"] if "StartTime" in action]
