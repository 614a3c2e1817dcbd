"""One Auto Scaling group: its settings, members and history, and how the API describes them."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from moto.autoscaling.exceptions import AutoscalingClientError, ValidationError
from moto.ec2.models.instances import Instance

from localcloud.api import partitions
from localcloud.autoscaling.activity import Activity
from localcloud.clock import Timer

PROCESSES = (
    "Launch",
    "Terminate",
    "AddToLoadBalancer",
    "AlarmNotification",
    "AZRebalance",
    "HealthCheck",
    "InstanceRefresh",
    "ReplaceUnhealthy",
    "ScheduledActions",
)
HISTORY_LIMIT = 1000

PENDING, IN_SERVICE, TERMINATING = "Pending", "InService", "Terminating"
# Called with None on success, else with the reason of the failure.
Notify = Callable[["str | None"], object]


@dataclass
class Member:
    """An instance of the group. `activity` is its launch or termination in progress."""

    instance: Instance
    subnet: str
    template: dict[str, str]
    activity: Activity
    protected: bool
    started: datetime
    state: str = PENDING
    health: str = "Healthy"

    @property
    def id(self) -> str:
        return self.instance.id

    @property
    def zone(self) -> str:
        return self.instance.placement.zone or ""

    def describe(self) -> dict[str, Any]:
        """Describe it as DescribeAutoScalingGroups does."""
        return {
            "InstanceId": self.id,
            "InstanceType": self.instance.instance_type,
            "AvailabilityZone": self.zone,
            "LifecycleState": self.state,
            "HealthStatus": self.health,
            "LaunchTemplate": self.template,
            "ProtectedFromScaleIn": self.protected,
        }


@dataclass
class Group:
    """The state of a group. Only the reconciler changes `members`; the API changes the settings."""

    name: str
    region: str
    account: str
    minimum: int
    maximum: int
    desired: int
    template: dict[str, str]
    subnets: list[str]
    zones: list[str]
    created: datetime
    why: str
    protect_new: bool = False
    tags: list[dict[str, Any]] = field(default_factory=list)
    notifications: dict[str, list[str]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    suspended: set[str] = field(default_factory=set)
    members: dict[str, Member] = field(default_factory=dict)
    activities: deque[Activity] = field(default_factory=lambda: deque(maxlen=HISTORY_LIMIT))
    replacing: int = 0
    failed_rounds: int = 0
    retry: Timer | None = None
    deleting: bool = False
    forced: bool = False
    stuck: bool = False
    settled: Notify | None = None
    gone: list[Notify] = field(default_factory=list)
    scheduled: dict[str, Any] = field(default_factory=dict)
    uuid: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def arn(self) -> str:
        return (
            f"{partitions.arn()}:autoscaling:{self.region}:{self.account}:autoScalingGroup:{self.uuid}"
            f":autoScalingGroupName/{self.name}"
        )

    def active(self) -> list[Member]:
        """Return the members that are starting or in service."""
        return [member for member in self.members.values() if member.state != TERMINATING]

    def in_service(self) -> int:
        """Count the members in service."""
        return sum(member.state == IN_SERVICE for member in self.members.values())

    def set_bounds(self, minimum: int, maximum: int, desired: int) -> None:
        """Set the sizes. Raises ValidationError, with AWS's message, when they contradict each other."""
        if minimum > maximum:
            raise ValidationError(f"Max bound, {maximum}, must be greater than or equal to min bound, {minimum}")
        if not minimum <= desired <= maximum:
            raise ValidationError(
                f"Desired capacity:{desired} must be between the specified min size:{minimum} and max size:{maximum}"
            )
        self.minimum, self.maximum, self.desired = minimum, maximum, desired

    def set_desired(self, desired: int) -> None:
        """Set the desired capacity. Raises ValidationError outside the bounds (docs/aws-behaviour.md 3.13)."""
        if desired > self.maximum:
            raise ValidationError(
                f"New SetDesiredCapacity value {desired} is above max value {self.maximum} for the AutoScalingGroup."
            )
        if desired < self.minimum:
            raise ValidationError(
                f"New SetDesiredCapacity value {desired} is below min value {self.minimum} for the AutoScalingGroup."
            )
        self.desired = desired

    def cancel_schedule(self) -> None:
        """Forget the scheduled actions: they end with their group."""
        for action in self.scheduled.values():
            action.timer.cancel()
        self.scheduled.clear()

    def member(self, instance_id: str) -> Member:
        """Return the member with this id. Raises ValidationError when the group has none."""
        if instance_id not in self.members:
            raise ValidationError(f"The instance {instance_id} is not part of Auto Scaling group {self.name}.")
        return self.members[instance_id]

    def suspend(self, processes: Iterable[str]) -> None:
        """Suspend the processes with these names, or all without names."""
        self.suspended |= set(_known(processes))

    def resume(self, processes: Iterable[str]) -> None:
        """Resume the processes with these names, or all without names."""
        self.suspended -= set(_known(processes))

    def propagated_tags(self) -> dict[str, str]:
        """Return the tags that the group's instances get."""
        return {tag["Key"]: tag.get("Value", "") for tag in self.tags if _true(tag.get("PropagateAtLaunch"))}

    def set_tags(self, tags: Iterable[dict[str, Any]]) -> None:
        """Add tags; a tag replaces an earlier one with the same key."""
        merged = {tag["Key"]: tag for tag in self.tags}
        merged.update({tag["Key"]: dict(tag) for tag in tags})
        self.tags = list(merged.values())

    def describe(self) -> dict[str, Any]:
        """Describe it as DescribeAutoScalingGroups does."""
        return {
            "AutoScalingGroupName": self.name,
            "AutoScalingGroupARN": self.arn,
            "LaunchTemplate": self.template,
            "MinSize": self.minimum,
            "MaxSize": self.maximum,
            "DesiredCapacity": self.desired,
            "DefaultCooldown": int(self.settings.get("DefaultCooldown", 300)),
            "AvailabilityZones": self.zones,
            "VPCZoneIdentifier": ",".join(self.subnets),
            "HealthCheckType": self.settings.get("HealthCheckType", "EC2"),
            "HealthCheckGracePeriod": int(self.settings.get("HealthCheckGracePeriod", 0)),
            "PlacementGroup": self.settings.get("PlacementGroup"),
            "CapacityReservationSpecification": self.settings.get("CapacityReservationSpecification"),
            "Instances": [member.describe() for member in list(self.members.values())],
            "CreatedTime": self.created,
            "SuspendedProcesses": [
                {"ProcessName": name, "SuspensionReason": f"User suspended at {self.created:%Y-%m-%dT%H:%M:%SZ}"}
                for name in sorted(self.suspended)
            ],
            "Status": "Delete in progress" if self.deleting else None,
            "Tags": self.described_tags(),
            "TerminationPolicies": self.settings.get("TerminationPolicies") or ["Default"],
            "NewInstancesProtectedFromScaleIn": self.protect_new,
            "ServiceLinkedRoleARN": f"{partitions.arn()}:iam::{self.account}:role/aws-service-role/"
            "autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling",
        }

    def described_tags(self) -> list[dict[str, Any]]:
        """Describe the tags as DescribeTags does."""
        return [
            {
                "ResourceId": self.name,
                "ResourceType": "auto-scaling-group",
                "Key": tag["Key"],
                "Value": tag.get("Value", ""),
                "PropagateAtLaunch": _true(tag.get("PropagateAtLaunch")),
            }
            for tag in self.tags
        ]


def already_exists(name: str) -> AutoscalingClientError:
    """The error of CreateAutoScalingGroup for a name that is taken."""
    return AutoscalingClientError(
        "AlreadyExists", f"AutoScalingGroup by this name already exists - A group with the name {name} already exists"
    )


def _known(processes: Iterable[str]) -> list[str]:
    names = list(processes)
    for name in names:
        if name not in PROCESSES:
            raise ValidationError(f"{name} is not a valid process type. Valid types are: {', '.join(PROCESSES)}")
    return names or list(PROCESSES)


def _true(value: Any) -> bool:
    return str(value).lower() == "true"
