"""Launches an instance for a group: its launch template, subnet and tags, checked before a group is accepted."""

from __future__ import annotations

from typing import Any

from moto.autoscaling.exceptions import ValidationError
from moto.core.exceptions import ServiceException
from moto.ec2.models import EC2Backend, ec2_backends
from moto.ec2.models.instances import Instance
from moto.ec2.models.launch_templates import LaunchTemplate, LaunchTemplateVersion

from localcloud.api.served import sentences
from localcloud.autoscaling.group import Group
from localcloud.ec2 import placement

GROUP_TAG = "aws:autoscaling:groupName"


def resolve(account: str, region: str, choice: dict[str, Any]) -> dict[str, str]:
    """Return the launch template's id, name and version. Raises ValidationError."""
    backend = ec2_backends[account][region]
    if bool(choice.get("LaunchTemplateId")) == bool(choice.get("LaunchTemplateName")):
        raise ValidationError("Valid requests must contain either launchTemplateId or LaunchTemplateName")
    try:
        template = _template(backend, choice)
        version = str(choice.get("Version") or "$Default")
        template.get_version(version)
    except (ServiceException, ValueError) as error:
        raise _not_well_formed(error) from error
    return {"LaunchTemplateId": template.id, "LaunchTemplateName": template.name, "Version": version}


def places(account: str, region: str, subnets: list[str]) -> list[str]:
    """Return the zones of the subnets. Raises ValidationError for a subnet that does not exist."""
    backend = ec2_backends[account][region]
    if not subnets:
        raise ValidationError("At least one Availability Zone or VPC Subnet is required.")
    try:
        return [backend.get_subnet(subnet).availability_zone for subnet in subnets]
    except ServiceException as error:
        raise ValidationError(str(error.message)) from error


def default_subnets(account: str, region: str, zones: list[str]) -> list[str]:
    """Return the default VPC's subnets in these zones. Raises ValidationError for a zone that has none."""
    found = ec2_backends[account][region].get_default_subnets()
    for zone in zones:
        if zone not in found:
            raise ValidationError(f"Invalid availability zone: [{zone}]")
    return [found[zone].id for zone in zones]


def check(group: Group) -> None:
    """Try the launch template as Auto Scaling does before it accepts a group (docs/aws-behaviour.md 1.5)."""
    try:
        for subnet in group.subnets:
            _request(group, subnet).check()
    except ServiceException as error:
        raise _not_well_formed(error) from error


def launch(group: Group, subnet: str) -> tuple[Instance, dict[str, str]]:
    """Launch one instance; return it with the template version it was made from. Raises EC2ClientError."""
    backend = ec2_backends[group.account][group.region]
    version = _version(backend, group)
    reservation = backend.run_instances("", 1, None, [], **_kwargs(group, subnet, version))
    return reservation.instances[0], current(group)


def current(group: Group) -> dict[str, str]:
    """Return the launch template, with the number of its version, from which the group launches now."""
    version = _version(ec2_backends[group.account][group.region], group)
    return {**group.template, "Version": str(version.number)}


def _request(group: Group, subnet: str) -> placement.Request:
    backend = ec2_backends[group.account][group.region]
    kwargs = _kwargs(group, subnet, _version(backend, group))
    return placement.Request.build(backend, "", 1, None, [], kwargs)


def _kwargs(group: Group, subnet: str, version: LaunchTemplateVersion) -> dict[str, Any]:
    return {
        "launch_template": {"LaunchTemplateId": version.template.id, "Version": str(version.number)},
        "is_instance_type_default": not version.instance_type,
        "instance_type": version.instance_type,
        "region_name": group.region,
        "subnet_id": subnet,
        "tags": {"instance": {**group.propagated_tags(), GROUP_TAG: group.name}},
        "associate_public_ip": None,
        "capacity_reservation": group.settings.get("CapacityReservationSpecification"),
    }


def _version(backend: EC2Backend, group: Group) -> LaunchTemplateVersion:
    return _template(backend, group.template).get_version(group.template["Version"])


def _template(backend: EC2Backend, choice: dict[str, Any]) -> LaunchTemplate:
    if choice.get("LaunchTemplateId"):
        return backend.get_launch_template(choice["LaunchTemplateId"])
    return backend.get_launch_template_by_name(choice["LaunchTemplateName"])


def _not_well_formed(error: Exception) -> ValidationError:
    reason = sentences.reworded(str(error.message)) if isinstance(error, ServiceException) else str(error)
    return ValidationError(f"You must use a valid fully-formed launch template. {reason}")
