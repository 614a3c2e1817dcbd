"""AWS::EC2::LaunchTemplate and AWS::AutoScaling::AutoScalingGroup: the machines."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from moto.core.types import Base64EncodedString
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.utils import convert_tag_spec

from phalanx.localcloud import autoscaling
from phalanx.localcloud.cloudformation.errors import ResourceFailed
from phalanx.localcloud.cloudformation.resources.network import ec2, truth
from phalanx.localcloud.cloudformation.resources.registry import Made, Request, resource

USER_DATA_LIMIT_BYTES = 16_384


def _delete_launch_template(request: Request, physical_id: str) -> None:
    template = ec2(request).launch_templates.get(physical_id)
    if template is not None:
        ec2(request).delete_launch_template(template.name, None)


@resource(
    "AWS::EC2::LaunchTemplate", _delete_launch_template, "DefaultVersionNumber LatestVersionNumber LaunchTemplateId"
)
def _launch_template(request: Request) -> Made:
    properties = request.properties
    data = dict(properties["LaunchTemplateData"])
    data["UserData"] = _user_data(data.get("UserData"))
    template = ec2(request).create_launch_template(
        request.name("LaunchTemplateName", 128),
        properties.get("VersionDescription", ""),
        data,
        convert_tag_spec(properties.get("TagSpecifications", []), tag_key="Tags"),
    )
    template.add_tags(request.tags)
    return Made(
        template.id,
        {
            "LaunchTemplateId": template.id,
            "DefaultVersionNumber": str(template.default_version_number),
            "LatestVersionNumber": str(template.latest_version_number),
        },
    )


def _user_data(encoded: str | None) -> Base64EncodedString | None:
    """User data as moto keeps it; refused when it is not base64 or, decoded, too long."""
    if not encoded:
        return None
    try:
        raw = base64.b64decode(encoded, validate=True)
    except ValueError:
        raise ResourceFailed("Invalid BASE64 encoding of user data. (Service: Ec2, Status Code: 400)") from None
    # docs/aws-behaviour.md 2.1: the limit counts the raw bytes, before base64.
    if len(raw) > USER_DATA_LIMIT_BYTES:
        raise ResourceFailed(f"User data is limited to {USER_DATA_LIMIT_BYTES} bytes (Service: Ec2, Status Code: 400)")
    return Base64EncodedString(encoded)


def _groups_twice(data: Mapping[str, Any]) -> str | None:
    # docs/aws-behaviour.md 2.4
    interfaces = data.get("NetworkInterfaces") or []
    if interfaces and (data.get("SecurityGroupIds") or data.get("SecurityGroups")):
        return "Network interfaces and an instance-level security groups may not be specified on the same request"
    return None


def _public_address_of_many(data: Mapping[str, Any]) -> str | None:
    # docs/aws-behaviour.md 2.9
    interfaces = data.get("NetworkInterfaces") or []
    if len(interfaces) > 1 and any(truth(face.get("AssociatePublicIpAddress", False)) for face in interfaces):
        return (
            "The associatePublicIPAddress parameter cannot be specified when launching with multiple network interfaces"
        )
    return None


def _no_image(data: Mapping[str, Any]) -> str | None:
    return None if data.get("ImageId") else "The request must contain the parameter ImageId"


LAUNCH_REFUSALS: tuple[Callable[[Mapping[str, Any]], str | None], ...] = (
    _groups_twice,
    _public_address_of_many,
    _no_image,
)


def _dry_run(request: Request) -> None:
    """What CreateAutoScalingGroup finds by its dry run (docs/aws-behaviour.md 1.5)."""
    given = request.properties.get("LaunchTemplate")
    if not given:
        raise ResourceFailed(
            "Valid requests must contain either LaunchTemplate, LaunchConfigurationName, or MixedInstancesPolicy"
        )
    template = _template(request, given)
    try:
        data = template.get_version(_version(template, given)).data
    except EC2ClientError as error:
        raise ResourceFailed(f"You must use a valid fully-formed launch template. {error.message}") from error
    for refusal in LAUNCH_REFUSALS:
        reason = refusal(data)
        if reason:
            raise ResourceFailed(f"You must use a valid fully-formed launch template. {reason}")


def _template(request: Request, given: Mapping[str, Any]) -> Any:
    backend = ec2(request)
    if "LaunchTemplateId" in given:
        return backend.get_launch_template(given["LaunchTemplateId"])
    return backend.get_launch_template_by_name(given.get("LaunchTemplateName", ""))


def _version(template: Any, given: Mapping[str, Any]) -> Any:
    numbers = {"$Latest": template.latest_version_number, "$Default": template.default_version_number}
    wanted = given.get("Version", "$Default")
    return numbers.get(wanted, wanted)


def _sizes(properties: Mapping[str, Any]) -> None:
    smallest, largest = int(properties["MinSize"]), int(properties["MaxSize"])
    desired = int(properties.get("DesiredCapacity", smallest))
    if not smallest <= desired <= largest:
        raise ResourceFailed(
            f"Desired capacity:{desired} must be between the specified min size:{smallest} and max size:{largest}"
        )


def _delete_group(request: Request, physical_id: str) -> bool:
    autoscaling.delete_group(request.context, request.region, physical_id, request.settled)
    return True


@resource("AWS::AutoScaling::AutoScalingGroup", _delete_group, "AutoScalingGroupARN")
def _group(request: Request) -> Made:
    _sizes(request.properties)
    _dry_run(request)
    name = request.name("AutoScalingGroupName", 255)
    own = {tag["Key"] for tag in request.properties.get("Tags", [])}
    stack_tags = [
        {"Key": key, "Value": value, "PropagateAtLaunch": True} for key, value in request.tags.items() if key not in own
    ]
    tags = [*request.properties.get("Tags", []), *stack_tags]
    autoscaling.create_group(
        request.context, request.region, name, {**request.properties, "Tags": tags}, request.settled
    )
    return Made(name, pending=True)
