"""Auto Scaling's notifications to SNS, in the formats of docs/aws-behaviour.md 3.1–3.4."""

from __future__ import annotations

import json
import logging
import uuid
from typing import Any

from moto.autoscaling.exceptions import ValidationError
from moto.core.exceptions import ServiceException
from moto.sns.models import sns_backends
from werkzeug.exceptions import HTTPException

from localcloud.autoscaling.activity import Activity, stamp
from localcloud.autoscaling.group import Group
from localcloud.context import Context
from localcloud.iam import keys

log = logging.getLogger(__name__)

TEST = "autoscaling:TEST_NOTIFICATION"
# In bad weather one notification in ten is lost, two arrive twice, and three are late.
_FATES = ("never", "twice", "twice", "late", "late", "late", *["on time"] * 4)
LATE_S = 60.0
KINDS = {
    "autoscaling:EC2_INSTANCE_LAUNCH": "launch",
    "autoscaling:EC2_INSTANCE_LAUNCH_ERROR": "failed launch",
    "autoscaling:EC2_INSTANCE_TERMINATE": "termination",
    "autoscaling:EC2_INSTANCE_TERMINATE_ERROR": "failed termination",
    TEST: "test notification",
}


def subscribe(context: Context, group: Group, topic: str, kinds: list[str]) -> None:
    """Subscribe a topic after a test notification. Raises ValidationError for a topic that does not exist."""
    for kind in kinds:
        if kind not in KINDS:
            raise ValidationError(f'"{kind}" is not a valid Notification Type.')
    test = {**_about(context, group, TEST), "RequestId": str(uuid.uuid4())}
    try:
        if keys.may_notify(context, group.region, topic):
            _send(group, topic, TEST, test)
    except (ServiceException, HTTPException) as error:
        raise ValidationError(
            f"Unable to publish test notification message to notification target {topic}."
            " Please check your target configuration and try again."
        ) from error
    group.notifications[topic] = list(kinds)


def publish(context: Context, group: Group, kind: str, activity: Activity, instance_id: str) -> None:
    """Notify every topic that subscribed to this kind; only log a failure, such as a topic that was deleted."""
    message = _about(context, group, kind) | {
        "Progress": activity.progress,
        "Description": activity.description,
        "RequestId": activity.id,
        "ActivityId": activity.id,
        "StartTime": stamp(activity.start),
        "EndTime": stamp(activity.end or context.clock.now()),
        "EC2InstanceId": instance_id,
        "StatusCode": activity.status,
        "StatusMessage": activity.status_message,
        "Details": activity.details(),
        "Cause": activity.cause,
    }
    for topic, kinds in group.notifications.items():
        if kind in kinds and keys.may_notify(context, group.region, topic):
            _deliver(context, group, topic, kind, message)


def _deliver(context: Context, group: Group, topic: str, kind: str, message: dict[str, Any]) -> None:
    """Notify a topic at once and once, unless the weather is against it (docs/aws-behaviour.md 11.1)."""
    delays_s = _delays_s(context, group, kind)
    for delay_s in delays_s:
        if delay_s > 0:
            context.clock.call_later(delay_s, _try_to_send, group, topic, kind, message)
        else:
            _try_to_send(group, topic, kind, message)


def _delays_s(context: Context, group: Group, kind: str) -> tuple[float, ...]:
    """Return the delay of each copy; none for a notification that is lost."""
    draw = context.weather.draw("notifications", group.name, kind)
    if draw is None:
        return (0.0,)
    fate = draw.choice(_FATES)
    delays_s = {"never": (), "twice": (0.0, draw.seconds(0, LATE_S)), "late": (draw.seconds(0, LATE_S),)}.get(fate)
    if delays_s is None:
        return (0.0,)
    context.weather.struck("notifications", f"{KINDS[kind]} of {group.name}: {fate}")
    return delays_s


def _try_to_send(group: Group, topic: str, kind: str, message: dict[str, Any]) -> None:
    try:
        _send(group, topic, kind, message)
    except (ServiceException, HTTPException):
        log.exception("group %s could not notify %s", group.name, topic)


def _about(context: Context, group: Group, kind: str) -> dict[str, Any]:
    return {
        "AccountId": group.account,
        "AutoScalingGroupARN": group.arn,
        "AutoScalingGroupName": group.name,
        "Event": kind,
        "Service": "AWS Auto Scaling",
        "Time": stamp(context.clock.now()),
    }


def _send(group: Group, topic: str, kind: str, message: dict[str, Any]) -> None:
    subject = f'Auto Scaling: {KINDS[kind]} for group "{group.name}"'
    sns_backends[group.account][group.region].publish(json.dumps(message), arn=topic, subject=subject)
