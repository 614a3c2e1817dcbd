"""EC2's instances: profiles, launch templates and images that do not fit, malformed ids, and reserved tags."""

from __future__ import annotations

import re
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.responses.instances import InstanceResponse
from moto.ec2.responses.launch_templates import LaunchTemplates
from moto.ec2.responses.tags import TagResponse

from localcloud.api.refusals.before import Given, before
from localcloud.ec2.placement import profile_of

_INSTANCE_ID = re.compile(r"i-(?:[0-9a-f]{8}|[0-9a-f]{17})")
_IMAGE_ID = re.compile(r"ami-(?:[0-9a-f]{8}|[0-9a-f]{17})")


@before(InstanceResponse, "describe_instances", "terminate_instances", "reboot_instances")
def _an_id_is_malformed(response: Any, _given: Given) -> None:
    for instance_id in response._get_param("InstanceIds", []):
        if not _INSTANCE_ID.fullmatch(instance_id):
            raise EC2ClientError("InvalidInstanceID.Malformed", f'Invalid id: "{instance_id}"')


@before(InstanceResponse, "run_instances")
def _a_launch_does_not_fit(response: Any, _given: Given) -> None:
    _check_image(response._get_param("ImageId"))
    _check_profile(response)
    _check_template(response)
    if response._get_param("SubnetId") and response._get_param("SecurityGroups"):
        text = "The parameter groupName cannot be used with the parameter subnet"
        raise EC2ClientError("InvalidParameterCombination", text)
    if int(response._get_param("MinCount")) < 1:
        raise EC2ClientError("InvalidParameterValue", "Invalid value '0' for MinCount. Value must be at least 1.")


def _check_image(image_id: str | None) -> None:
    if image_id and not image_id.startswith("resolve:") and not _IMAGE_ID.fullmatch(image_id):
        raise EC2ClientError("InvalidAMIID.Malformed", f'Invalid id: "{image_id}"')


def _check_profile(response: Any) -> None:
    name, arn = response._get_param("IamInstanceProfile.Name"), response._get_param("IamInstanceProfile.Arn")
    if name or arn:
        profile_of(response.current_account, response.partition, arn, name)


def _check_template(response: Any) -> None:
    """Refuse an unknown launch template or version; moto's own look-up fails without an answer."""
    template_id, name = (
        response._get_param("LaunchTemplate.LaunchTemplateId"),
        response._get_param("LaunchTemplate.LaunchTemplateName"),
    )
    if not template_id and not name:
        return
    backend = response.ec2_backend
    if template_id:
        _require_template(backend, template_id)
        template = backend.get_launch_template(template_id)
    else:
        template = backend.get_launch_template_by_name(name)
    version = str(response._get_param("LaunchTemplate.Version") or "$Default")
    if version.isdecimal() and int(version) not in [known.number for known in template.versions]:
        text = f"Could not find the specified version {version} for the launch template with ID {template.id}."
        raise EC2ClientError("InvalidLaunchTemplateId.VersionNotFound", text)


@before(LaunchTemplates, "delete_launch_template", "create_launch_template_version")
def _a_template_is_unknown(response: Any, _given: Given) -> None:
    if template_id := response._get_param("LaunchTemplateId"):
        _require_template(response.ec2_backend, template_id)


def _require_template(backend: Any, template_id: str) -> None:
    if template_id not in backend.launch_templates:
        text = f"The specified launch template, with template ID {template_id}, does not exist."
        raise EC2ClientError("InvalidLaunchTemplateId.NotFound", text)


@before(EC2Backend, "modify_instance_attribute")
def _an_instance_is_running(backend: Any, given: Given) -> None:
    if given.key in _OF_STOPPED and backend.get_instance(given.instance_id).state != "stopped":
        text = f"The instance '{given.instance_id}' is not in the 'stopped' state."
        raise EC2ClientError("IncorrectInstanceState", text)


_OF_STOPPED = ("instance_type", "kernel", "ramdisk", "user_data")


@before(TagResponse, "create_tags")
def _a_tag_is_reserved_or_an_instance_unknown(response: Any, _given: Given) -> None:
    for instance_id in [one for one in response._get_param("Resources", []) if one.startswith("i-")]:
        response.ec2_backend.get_instance(instance_id)
    if any(str(tag["Key"]).lower().startswith("aws:") for tag in response._get_param("Tags", [])):
        text = "Tag keys starting with 'aws:' are reserved for internal use"
        raise EC2ClientError("InvalidParameterValue", text)
