"""Scaling activities: what a group did and why, in Auto Scaling's wording (docs/aws-behaviour.md 3.1–3.8)."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

# The limits of Auto Scaling's service model.
STATUS_MESSAGE_LIMIT = 255
CAUSE_LIMIT = 1023


@dataclass
class Activity:
    """One launch or termination, from its start to its end."""

    group: str
    group_arn: str
    description: str
    cause: str
    zone: str
    subnet: str
    start: datetime
    status: str = "InProgress"
    status_message: str = ""
    progress: int = 50
    end: datetime | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def finish(self, status: str, now: datetime, message: str = "") -> None:
        """End the activity for good: Successful, Failed or Cancelled."""
        self.status, self.progress, self.end = status, 100, now
        self.status_message = message[:STATUS_MESSAGE_LIMIT]

    def describe(self) -> dict[str, Any]:
        """Describe it as DescribeScalingActivities does, with Details as JSON text."""
        return {
            "ActivityId": self.id,
            "AutoScalingGroupName": self.group,
            "AutoScalingGroupARN": self.group_arn,
            "Description": self.description,
            "Cause": self.cause[:CAUSE_LIMIT],
            "StartTime": self.start,
            "EndTime": self.end,
            "StatusCode": self.status,
            "StatusMessage": self.status_message or None,
            "Progress": self.progress,
            "Details": json.dumps(self.details(), separators=(",", ":")),
        }

    def details(self) -> dict[str, str]:
        """Return where it happened; an activity of the whole group has no place."""
        places = {"Subnet ID": self.subnet, "Availability Zone": self.zone}
        return {name: place for name, place in places.items() if place}


def stamp(moment: datetime) -> str:
    """Format a time for messages and notifications."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def created(now: datetime, desired: int) -> str:
    """The cause of the desired capacity of a new group."""
    return (
        f"At {stamp(now)} a user request created an AutoScalingGroup changing the desired capacity from 0 to {desired}."
    )


def desired_set(now: datetime, before: int, after: int) -> str:
    """The cause of a desired capacity set by SetDesiredCapacity."""
    return (
        f"At {stamp(now)} a user request explicitly set group desired capacity changing the desired capacity"
        f" from {before} to {after}."
    )


def constraints_updated(now: datetime, bounds: tuple[int, int, int], before: int) -> str:
    """The cause of a desired capacity set by UpdateAutoScalingGroup with (min, max, desired)."""
    minimum, maximum, desired = bounds
    return (
        f"At {stamp(now)} a user request update of AutoScalingGroup constraints to min: {minimum}, max: {maximum},"
        f" desired: {desired} changing the desired capacity from {before} to {desired}."
    )


def scheduled(now: datetime, bounds: tuple[int, int, int], before: int) -> str:
    """The cause of a desired capacity set by a scheduled action with (min, max, desired)."""
    minimum, maximum, desired = bounds
    return (
        f"At {stamp(now)} a scheduled action update of AutoScalingGroup constraints to min: {minimum}, max: {maximum},"
        f" desired: {desired} changing the desired capacity from {before} to {desired}."
    )


def growing(now: datetime, why: str, before: int, after: int) -> str:
    """The cause of a launch."""
    return (
        f"{why}  At {stamp(now)} an instance was started in response to a difference between desired and actual"
        f" capacity, increasing the capacity from {before} to {after}."
    )


def shrinking(now: datetime, why: str, instance_id: str, before: int, after: int) -> str:
    """The cause of a termination when the desired capacity is lower."""
    return (
        f"{why}  At {stamp(now)} an instance was taken out of service in response to a difference between desired and"
        f" actual capacity, shrinking the capacity from {before} to {after}."
        f"  At {stamp(now)} instance {instance_id} was selected for termination."
    )


def replacing(now: datetime) -> str:
    """The cause of a launch after an instance was lost."""
    return f"At {stamp(now)} an instance was launched in response to an unhealthy instance needing to be replaced."


def not_running(now: datetime) -> str:
    """The cause of a termination when EC2 reports that the instance does not run."""
    return (
        f"At {stamp(now)} an instance was taken out of service in response to an EC2 health check indicating it has"
        " been terminated or stopped."
    )


def marked_unhealthy(now: datetime) -> str:
    """The cause of a termination after SetInstanceHealth."""
    return f"At {stamp(now)} an instance was taken out of service in response to a user health-check."


def user_terminated(now: datetime, instance_id: str, before: int, after: int) -> str:
    """The cause of a termination by TerminateInstanceInAutoScalingGroup."""
    cause = f"At {stamp(now)} instance {instance_id} was taken out of service in response to a user request"
    return f"{cause}, shrinking the capacity from {before} to {after}." if after < before else f"{cause}."


def failed_launch(reason: str) -> tuple[str, str]:
    """The description and the status message of a launch that EC2 refused."""
    message = f"{reason} Launching EC2 instance failed."
    return f"Launching a new EC2 instance.  Status Reason: {message}", message
