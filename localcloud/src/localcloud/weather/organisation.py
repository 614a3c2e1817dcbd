"""An organisation's rules, which no retry passes (docs/aws-behaviour.md 11.9–11.12)."""

from __future__ import annotations

from moto.autoscaling.exceptions import ValidationError
from moto.ec2.exceptions import EC2ClientError

from localcloud.api import partitions
from localcloud.context import Context
from localcloud.ec2.capacity import CapacityError

_ROLE = "role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
KEY_REFUSED = "Client.InternalError: Client error on launch"


def check_group(context: Context, region: str) -> None:
    """Raise ValidationError for what forbids an Auto Scaling group."""
    user = f"{partitions.arn()}:iam::{context.account}:user/admin"
    if context.weather.forbids("service-linked-role"):
        role = f"{partitions.arn()}:iam::{context.account}:{_ROLE}"
        raise ValidationError(
            f"The default Service-Linked Role for Auto Scaling could not be created. User: {user} is not authorized to"
            f" perform: iam:CreateServiceLinkedRole on resource: {role}"
        )
    if context.weather.forbids("explicit-deny"):
        said = _unauthorized(context, region)
        raise ValidationError(f"You must use a valid fully-formed launch template. {said}")


def check_run(context: Context, region: str) -> None:
    """Raise EC2ClientError for what forbids RunInstances to whoever calls it, a dry run included."""
    if context.weather.forbids("explicit-deny"):
        raise EC2ClientError("UnauthorizedOperation", _unauthorized(context, region))


def _unauthorized(context: Context, region: str) -> str:
    user = f"{partitions.arn()}:iam::{context.account}:user/admin"
    instances = f"{partitions.arn()}:ec2:{region}:{context.account}:instance/*"
    return (
        f"You are not authorized to perform this operation. User: {user} is not authorized to perform:"
        f" ec2:RunInstances on resource: {instances} with an explicit deny in a service control policy"
    )


def check_launch(context: Context) -> None:
    """Raise CapacityError for what forbids a launch."""
    if context.weather.forbids("tag-policy"):
        raise CapacityError(*tag_violation(context.weather.tag_key))


def tag_violation(key: str) -> tuple[str, str]:
    """Return EC2's code and message for a tag whose value a policy does not allow."""
    return (
        "TagPolicyViolation",
        f"The tag policy does not allow the specified value for the following tag key: '{key}'.",
    )


def forbids_disk(context: Context) -> bool:
    """Whether EC2 ends a new instance, because whoever launched it may not use the key of its disk."""
    return context.weather.forbids("disk-key")
