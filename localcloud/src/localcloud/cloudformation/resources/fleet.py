"""Launch templates, placement groups, and Auto Scaling groups with their scheduled actions."""

from __future__ import annotations

import base64
from typing import Any

from moto.core.types import Base64EncodedString
from moto.ec2.utils import convert_tag_spec

from localcloud import autoscaling
from localcloud.cloudformation.errors import ResourceFailed
from localcloud.cloudformation.resources.network import ec2
from localcloud.cloudformation.resources.registry import Made, Request, resource
from localcloud.ec2 import placement_groups
from localcloud.ec2.placement import USER_DATA_LIMIT_BYTES


def _delete_launch_template(request: Request, physical_id: str) -> None:
    template = ec2(request).launch_templates.get(physical_id)
    if template is not None:
        ec2(request).delete_launch_template(template.name, None)


@resource(
    "AWS::EC2::LaunchTemplate", _delete_launch_template, "DefaultVersionNumber LatestVersionNumber LaunchTemplateId"
)
def _launch_template(request: Request) -> Made:
    template = ec2(request).create_launch_template(
        request.name("LaunchTemplateName", 128),
        request.properties.get("VersionDescription", ""),
        template_data(request),
        {"launch-template": template_tags(request)},
    )
    template.add_tags(request.tags)
    return Made(template.id, template_attributes(template))


def template_data(request: Request) -> dict[str, Any]:
    """Return the data of a launch template as moto keeps it."""
    data = dict(request.properties["LaunchTemplateData"])
    return {**data, "UserData": _user_data(data.get("UserData"))}


def template_tags(request: Request) -> dict[str, str]:
    """Return the tags that a template's properties give to itself."""
    return convert_tag_spec(request.properties.get("TagSpecifications", []), tag_key="Tags").get("launch-template", {})


def template_attributes(template: Any) -> dict[str, str]:
    """Return the GetAtt values of a launch template."""
    return {
        "LaunchTemplateId": template.id,
        "DefaultVersionNumber": str(template.default_version_number),
        "LatestVersionNumber": str(template.latest_version_number),
    }


def _user_data(encoded: str | None) -> Base64EncodedString | None:
    """Return user data as moto keeps it. Raises ResourceFailed if it is not base64 or too long."""
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


def _delete_placement_group(request: Request, physical_id: str) -> None:
    if placement_groups.exists(ec2(request), physical_id):
        placement_groups.delete(ec2(request), physical_id)


@resource("AWS::EC2::PlacementGroup", _delete_placement_group, "GroupName")
def _placement_group(request: Request) -> Made:
    name = request.name("", 255)
    strategy = request.properties.get("Strategy", "cluster")
    placement_groups.create(ec2(request), name, strategy, request.tag_map())
    return Made(name, {"GroupName": name})


def _delete_group(request: Request, physical_id: str) -> bool:
    autoscaling.delete_group(request.context, request.region, physical_id, request.settled)
    return True


@resource("AWS::AutoScaling::AutoScalingGroup", _delete_group, "AutoScalingGroupARN")
def _group(request: Request) -> Made:
    name = request.name("AutoScalingGroupName", 255)
    properties = {**request.properties, "Tags": group_tags(request)}
    autoscaling.create_group(request.context, request.region, name, properties, request.settled)
    return Made(name, pending=True)


def group_tags(request: Request) -> list[dict[str, Any]]:
    """Return the tags of a group: its own, and the stack's, which all instances get (docs/aws-behaviour.md 1.25)."""
    own = {tag["Key"] for tag in request.properties.get("Tags", [])}
    stack_tags = [
        {"Key": key, "Value": value, "PropagateAtLaunch": True} for key, value in request.tags.items() if key not in own
    ]
    return [*request.properties.get("Tags", []), *stack_tags]


def _delete_scheduled_action(request: Request, physical_id: str) -> None:
    autoscaling.delete_scheduled_action(request.region, request.properties["AutoScalingGroupName"], physical_id)


@resource("AWS::AutoScaling::ScheduledAction", _delete_scheduled_action, "ScheduledActionName")
def _scheduled_action(request: Request) -> Made:
    name = request.name("ScheduledActionName", 255)
    autoscaling.put_scheduled_action(request.region, name, request.properties)
    return Made(name, {"ScheduledActionName": name})
