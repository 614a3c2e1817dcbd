"""AWS::IAM types: roles, policies and instance profiles."""

from __future__ import annotations

import json
from typing import Any

from moto.iam.models import iam_backends

from localcloud.api import partitions
from localcloud.cloudformation.errors import ResourceFailed
from localcloud.cloudformation.resources.registry import Made, Request, all_or_nothing, resource


def iam(request: Request) -> Any:
    """Return moto's IAM backend, one for all regions."""
    return iam_backends[request.context.account][partitions.played()]


def document(value: Any) -> str:
    """Return a policy document as text."""
    return value if isinstance(value, str) else json.dumps(value)


def _role_of(request: Request, name: str) -> Any:
    return next((role for role in iam(request).get_roles() if role.name == name), None)


def _delete_role(request: Request, physical_id: str) -> None:
    backend, role = iam(request), _role_of(request, physical_id)
    if role is None:
        return
    # Only what the template gave it: IAM refuses to delete a role with policies that a person added.
    for policy in {one["PolicyName"] for one in request.properties.get("Policies", [])} & {*role.policies}:
        backend.delete_role_policy(physical_id, policy)
    for arn in {*request.properties.get("ManagedPolicyArns", [])} & {*role.managed_policies}:
        backend.detach_role_policy(arn, physical_id)
    backend.delete_role(physical_id)


def check_role(request: Request) -> None:
    """Refuse a role that IAM refuses and moto accepts."""
    _refuse_boundary(iam(request), request.properties.get("PermissionsBoundary"))


def _refuse_boundary(backend: Any, arn: str | None) -> None:
    """Refuse a boundary that does not exist, as IAM does and moto does not."""
    if arn and arn not in backend.managed_policies:
        raise ResourceFailed(f"Scope ARN: {arn} does not exist or is not attachable. (Service: Iam, Status Code: 404)")


@resource("AWS::IAM::Role", _delete_role, "Arn RoleId")
def _role(request: Request) -> Made:
    properties, backend = request.properties, iam(request)
    check_role(request)
    name = request.name("RoleName", 64)
    role = backend.create_role(
        name,
        document(properties["AssumeRolePolicyDocument"]),
        properties.get("Path", "/"),
        properties.get("PermissionsBoundary"),
        properties.get("Description", ""),
        # IAM reserves tag keys that start with aws:, so CloudFormation doesn't set them on roles.
        [tag for tag in request.tag_list() if not tag["Key"].startswith("aws:")],
        properties.get("MaxSessionDuration", 3600),
    )
    with all_or_nothing(_delete_role, request, name):
        for policy in properties.get("Policies", []):
            backend.put_role_policy(name, policy["PolicyName"], document(policy["PolicyDocument"]))
        for arn in properties.get("ManagedPolicyArns", []):
            backend.attach_role_policy(arn, name)
    return Made(name, {"Arn": role.arn, "RoleId": role.id})


def _delete_policy(request: Request, physical_id: str) -> None:  # noqa: ARG001
    for name in request.properties.get("Roles", []):
        role = _role_of(request, name)
        if role is not None and request.properties["PolicyName"] in role.policies:
            iam(request).delete_role_policy(name, request.properties["PolicyName"])


@resource("AWS::IAM::Policy", _delete_policy, "Id")
def _policy(request: Request) -> Made:
    properties = request.properties
    for role in properties.get("Roles", []):
        iam(request).put_role_policy(role, properties["PolicyName"], document(properties["PolicyDocument"]))
    name = request.name("", 64)
    return Made(name, {"Id": name})


def _delete_managed_policy(request: Request, physical_id: str) -> None:
    backend = iam(request)
    if physical_id in backend.managed_policies:
        for role in [role for role in backend.get_roles() if physical_id in role.managed_policies]:
            backend.detach_role_policy(physical_id, role.name)
        backend.delete_policy(physical_id)


@resource(
    "AWS::IAM::ManagedPolicy",
    _delete_managed_policy,
    "AttachmentCount CreateDate DefaultVersionId IsAttachable"
    " PermissionsBoundaryUsageCount PolicyArn PolicyId UpdateDate",
)
def _managed_policy(request: Request) -> Made:
    properties, backend = request.properties, iam(request)
    name = request.name("ManagedPolicyName", 128)
    text, described = document(properties["PolicyDocument"]), properties.get("Description", "")
    policy = backend.create_policy(described, properties.get("Path", "/"), text, name, [])
    with all_or_nothing(_delete_managed_policy, request, policy.arn):
        for role in properties.get("Roles", []):
            backend.attach_role_policy(policy.arn, role)
    return Made(policy.arn, _described(policy))


def _described(policy: Any) -> dict[str, Any]:
    """Return a managed policy's attributes, as they are when it is made."""
    return {
        "AttachmentCount": policy.attachment_count,
        "CreateDate": policy.create_date.isoformat(),
        "DefaultVersionId": policy.default_version_id,
        "IsAttachable": True,
        "PermissionsBoundaryUsageCount": 0,
        "PolicyArn": policy.arn,
        "PolicyId": policy.id,
        "UpdateDate": policy.update_date.isoformat(),
    }


def _delete_profile(request: Request, physical_id: str) -> None:
    if physical_id in {profile.name for profile in iam(request).get_instance_profiles()}:
        iam(request).delete_instance_profile(physical_id, ignore_attached_roles=True)


@resource("AWS::IAM::InstanceProfile", _delete_profile, "Arn")
def _profile(request: Request) -> Made:
    properties = request.properties
    name = request.name("InstanceProfileName", 128)
    profile = iam(request).create_instance_profile(name, properties.get("Path", "/"), list(properties["Roles"]))
    return Made(name, {"Arn": profile.arn})
