"""The heads that a cluster has had, read from the activities of its Auto Scaling group."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from phalanx.aws.model import Heads

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_LAUNCH = re.compile(r"Launching a new EC2 instance: (i-\w+)")
_END = re.compile(r"Terminating EC2 instance: (i-\w+)")


def of(api: Aws, group: str) -> Heads:
    """Return the heads that the group has launched. The newest activity comes first (docs/aws-behaviour.md 3.5)."""
    answer = api.exists("autoscaling", "describe_scaling_activities", AutoScalingGroupName=group) or {}
    activities = answer.get("Activities", [])
    launched = [found[1] for one in activities[::-1] if (found := _LAUNCH.match(one["Description"]))]
    why = next((one["Cause"] for one in activities if _END.match(one["Description"])), "")
    return Heads(tuple(launched), why, bool(launched) and _runs(api, launched[-1]))


def _runs(api: Aws, instance_id: str) -> bool:
    answer = api.exists("ec2", "describe_instances", InstanceIds=[instance_id]) or {"Reservations": []}
    return any(i["State"]["Name"] == "running" for r in answer["Reservations"] for i in r["Instances"])
