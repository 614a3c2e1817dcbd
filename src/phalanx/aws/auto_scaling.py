"""The machines of clusters that Auto Scaling makes: a group for the head, and one for the workers.

A cluster's lease is a scheduled action that lowers both groups to 0. All changes here go with the user's own rights: no
role of a node may schedule anything, or change a group's greatest size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from phalanx.aws import file_systems
from phalanx.aws.model import Heads, Resource, Running, ScalingActivity
from phalanx.aws.refusals import is_gone
from phalanx.errors import CloudError
from phalanx.node.workers_group import workers_of
from phalanx.plan.money import Use
from phalanx.spec.own_tags import KEEP_TAG

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws
    from phalanx.spec.spec import ClusterSpec

HEAD, WORKERS = "head", "workers"
# Of an action that phalanx makes itself; one that the stack made keeps its name.
_NAME = "phalanx-lease"
_NOTHING = {"MinSize": 0, "MaxSize": 0, "DesiredCapacity": 0}
_LAUNCH = re.compile(r"Launching a new EC2 instance: (i-\w+)")
_END = re.compile(r"Terminating EC2 instance: (i-\w+)")


class AutoScaling:
    """See `phalanx.aws.model.Machines`."""

    admin_user = ""

    def __init__(self, api: Aws) -> None:
        self._api = api

    def require(self, spec: ClusterSpec) -> tuple[str, str]:  # noqa: ARG002 - of the protocol
        return "", ""

    def running(self, cluster: str) -> Running | None:
        groups, head = self._groups(cluster), f"{cluster}-{HEAD}"
        if head not in groups:
            return None
        ends = [action["StartTime"].timestamp() for action in self._actions(head)]
        sizes = [group["DesiredCapacity"] for group in groups.values()]
        return Running(
            nodes=sum(sizes),
            stopped=groups[head]["DesiredCapacity"] == 0,
            end_s=min(ends, default=None),
            idle_since_s=self._idle_since_s(groups),
            kept_until_s=_kept_until_s(groups[head]),
        )

    def use(self, cluster: str, file_system: str, now_s: float) -> Use:
        """Return what the cluster has used, by the record that Auto Scaling keeps for six weeks."""
        head_hours, heads = node_hours(self._activities(f"{cluster}-{HEAD}"), now_s)
        worker_hours, workers = node_hours(self._activities(f"{cluster}-{WORKERS}"), now_s)
        stored = file_systems.stored_gib(self._api, file_system) if file_system else 0.0
        return Use(head_hours, worker_hours, heads, workers, stored)

    def outdated(self, cluster: str) -> list[str]:
        """Return the instances whose launch template has another version than their group's has now."""
        return [
            instance["InstanceId"]
            for group in self._groups(cluster).values()
            for instance in group["Instances"]
            if instance.get("LaunchTemplate", {}).get("Version") != group["LaunchTemplate"]["Version"]
        ]

    def end_at(self, cluster: str, at_s: float | None) -> None:
        for role in (HEAD, WORKERS):
            group = f"{cluster}-{role}"
            names = [action["ScheduledActionName"] for action in self._actions(group)]
            for name in names if at_s is None else names or [_NAME]:
                action = {"AutoScalingGroupName": group, "ScheduledActionName": name}
                if at_s is None:
                    self._api.call("autoscaling", "delete_scheduled_action", **action)
                else:
                    start = datetime.fromtimestamp(at_s, timezone.utc)
                    self._api.call(
                        "autoscaling", "put_scheduled_update_group_action", **action, StartTime=start, **_NOTHING
                    )

    def keep_until(self, cluster: str, at_s: float) -> None:
        of_group = {"ResourceId": f"{cluster}-{HEAD}", "ResourceType": "auto-scaling-group", "PropagateAtLaunch": False}
        self._api.call(
            "autoscaling", "create_or_update_tags", Tags=[{**of_group, "Key": KEEP_TAG, "Value": str(int(at_s))}]
        )

    def start_nodes(self, cluster: str, nodes: int) -> None:
        for role, size in {WORKERS: workers_of(nodes), HEAD: 1}.items():
            sizes = {"MinSize": 0, "MaxSize": size, "DesiredCapacity": size}
            self._api.call(
                "autoscaling", "update_auto_scaling_group", AutoScalingGroupName=f"{cluster}-{role}", **sizes
            )

    def allow_nodes(self, cluster: str, nodes: int) -> None:
        group = f"{cluster}-{WORKERS}"
        self._api.call(
            "autoscaling", "update_auto_scaling_group", AutoScalingGroupName=group, MaxSize=workers_of(nodes)
        )

    def activities(self, group: str) -> list[ScalingActivity]:
        return self._activities(group, IncludeDeletedGroups=True)

    def leftovers(self, cluster: str, resources: Sequence[Resource]) -> Iterator[str]:  # noqa: ARG002 - of the protocol
        """Yield nothing: groups are resources of the stack."""
        yield from ()

    def clusters(self) -> Iterator[str]:
        """Yield nothing: the tags of groups are found with those of all resources."""
        yield from ()

    def heads(self, group: str) -> Heads:
        answer = self._api.exists("autoscaling", "describe_scaling_activities", AutoScalingGroupName=group) or {}
        activities = answer.get("Activities", [])
        # The newest activity comes first (docs/aws-behaviour.md 3.5).
        launched = [found[1] for one in activities[::-1] if (found := _LAUNCH.match(one["Description"]))]
        why = next((one["Cause"] for one in activities if _END.match(one["Description"])), "")
        return Heads(tuple(launched), why, bool(launched) and self._runs(launched[-1]))

    def _groups(self, cluster: str) -> dict[str, dict[str, Any]]:
        """Return the cluster's groups by name."""
        names = [f"{cluster}-{role}" for role in (HEAD, WORKERS)]
        answer = self._api.call("autoscaling", "describe_auto_scaling_groups", AutoScalingGroupNames=names)
        return {group["AutoScalingGroupName"]: group for group in answer["AutoScalingGroups"]}

    def _actions(self, group: str) -> list[dict[str, Any]]:
        answer = self._api.call("autoscaling", "describe_scheduled_actions", AutoScalingGroupName=group)
        return [action for action in answer["ScheduledUpdateGroupActions"] if "StartTime" in action]

    def _activities(self, group: str, **which: bool) -> list[ScalingActivity]:
        """Return the group's activities of six weeks, newest first; none if there is no such group (yet).

        With IncludeDeletedGroups, also those of groups of this name that were deleted (docs/aws-behaviour.md 3.8).
        """
        named = {"AutoScalingGroupName": group, **which}
        try:
            found = self._api.pages("autoscaling", "describe_scaling_activities", "Activities", **named)
            return [_activity(one) for one in found]
        except CloudError as error:
            if is_gone(error.__cause__):
                return []
            raise

    def _idle_since_s(self, groups: dict[str, dict[str, Any]]) -> float | None:
        """Return when the last instance had ended, 0 if that was more than six weeks ago; None while there is one."""
        if any(group["DesiredCapacity"] or group["Instances"] for group in groups.values()):
            return None
        last: list[float] = [0.0]
        for name in groups:
            found = self._api.call(
                "autoscaling", "describe_scaling_activities", AutoScalingGroupName=name, MaxRecords=1
            )
            for activity in found["Activities"]:
                if not activity.get("EndTime"):
                    return None
                last.append(activity["EndTime"].timestamp())
        return max(last)

    def _runs(self, instance_id: str) -> bool:
        answer = self._api.exists("ec2", "describe_instances", InstanceIds=[instance_id]) or {"Reservations": []}
        return any(i["State"]["Name"] == "running" for r in answer["Reservations"] for i in r["Instances"])


def node_hours(found: Iterable[ScalingActivity], now_s: float) -> tuple[float, int]:
    """Return the hours of all instances that these activities launched, and how many of them still run.

    A launch counts from the start of its activity; a failed one that got an instance ends with it.
    """
    began: dict[str, float] = {}
    ended: dict[str, float] = {}
    for one in found:
        end_s = now_s if one.ended_s is None else one.ended_s
        if launch := _LAUNCH.match(one.description):
            began[launch[1]] = one.began_s
            if one.status in ("Failed", "Cancelled"):
                ended[launch[1]] = end_s
        elif end := _END.match(one.description):
            ended[end[1]] = end_s
    seconds = sum(max(0.0, ended.get(instance, now_s) - start_s) for instance, start_s in began.items())
    return seconds / 3600, len(began.keys() - ended.keys())


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


def _kept_until_s(group: dict[str, Any]) -> float:
    tags = {tag["Key"]: tag["Value"] for tag in group.get("Tags", [])}
    value = tags.get(KEEP_TAG, "")
    return float(value) if value.isdecimal() else 0.0
