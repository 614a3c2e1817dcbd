"""How resources change in place: the properties that AWS changes without replacing a resource, and tags."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from localcloud import autoscaling
from localcloud.cloudformation.errors import ResourceFailed
from localcloud.cloudformation.resources import access, fleet, functions, messaging, network, security, storage
from localcloud.cloudformation.resources.network import ec2, truth
from localcloud.cloudformation.resources.registry import Request, updates
from localcloud.storage import fsx

Attributes = Mapping[str, Any]
Tag = Callable[[Request, str, dict[str, str], list[str]], None]

_SIZES = ("MinSize", "MaxSize", "DesiredCapacity")


def _retag(tag: Tag, request: Request, before: Request, physical_id: str, key: str = "Tags") -> None:
    """Set the tags that differ, and remove those that are gone."""
    now, had = request.tag_map(key), before.tag_map(key)
    changed = {name: value for name, value in now.items() if had.get(name) != value}
    gone = [name for name in had if name not in now]
    if changed or gone:
        tag(request, physical_id, changed, gone)


# ---- EC2


def _tag_ec2(request: Request, physical_id: str, changed: dict[str, str], gone: list[str]) -> None:
    ec2(request).create_tags([physical_id], changed)
    ec2(request).delete_tags([physical_id], dict.fromkeys(gone))


def _only_tags(request: Request, before: Request, physical_id: str) -> None:
    _retag(_tag_ec2, request, before, physical_id)


for _kind in ("InternetGateway", "NatGateway", "RouteTable"):
    updates(f"AWS::EC2::{_kind}")(_only_tags)


@updates("AWS::EC2::VPCEndpoint", "PolicyDocument RouteTableIds")
def _endpoint(request: Request, before: Request, physical_id: str) -> None:
    now, had = (one.properties.get("RouteTableIds", []) for one in (request, before))
    policy = request.properties.get("PolicyDocument", network.OPEN_POLICY)
    ec2(request).modify_vpc_endpoint(
        physical_id,
        policy if isinstance(policy, str) else json.dumps(policy),
        None,
        None,
        [one for one in had if one not in now],
        [one for one in now if one not in had],
        None,
        None,
    )
    _only_tags(request, before, physical_id)


@updates("AWS::EC2::EIP")
def _address(request: Request, before: Request, physical_id: str) -> None:
    found = next(one for one in ec2(request).addresses if one.public_ip == physical_id)
    _retag(_tag_ec2, request, before, found.allocation_id)


@updates("AWS::EC2::VPC", "EnableDnsSupport EnableDnsHostnames")
def _vpc(request: Request, before: Request, physical_id: str) -> None:
    for key, attribute in network.DNS:
        wanted = request.properties.get(key)
        if wanted is not None and wanted != before.properties.get(key):
            ec2(request).modify_vpc_attribute(physical_id, attribute, truth(wanted))
    _only_tags(request, before, physical_id)


@updates("AWS::EC2::Subnet", "MapPublicIpOnLaunch")
def _subnet(request: Request, before: Request, physical_id: str) -> None:
    ec2(request).get_subnet(physical_id).map_public_ip_on_launch = truth(request.properties.get("MapPublicIpOnLaunch"))
    _only_tags(request, before, physical_id)


@updates("AWS::EC2::SecurityGroup", "SecurityGroupIngress SecurityGroupEgress")
def _security_group(request: Request, before: Request, physical_id: str) -> None:
    """Add what is new, then remove what is gone. Rules that somebody else has added stay."""
    for direction, key in security.DIRECTIONS:
        now, had = request.properties.get(key, []), before.properties.get(key, [])
        for rule in (one for one in now if one not in had):
            security.authorize(ec2(request), direction, physical_id, rule)
        for rule in (one for one in had if one not in now):
            security.revoke_rule(ec2(request), direction, physical_id, rule)
    _only_tags(request, before, physical_id)


@updates("AWS::EC2::LaunchTemplate", "LaunchTemplateData VersionDescription TagSpecifications")
def _launch_template(request: Request, before: Request, physical_id: str) -> Attributes:
    """Add a version; the default version stays the first one."""
    template = ec2(request).get_launch_template(physical_id)
    if fleet.template_data(request) != fleet.template_data(before):
        template.create_version(fleet.template_data(request), request.properties.get("VersionDescription", ""))
    now, had = fleet.template_tags(request), fleet.template_tags(before)
    _tag_ec2(request, physical_id, now, [name for name in had if name not in now])
    return fleet.template_attributes(template)


# ---- Auto Scaling


def _tag_group(request: Request, physical_id: str, changed: dict[str, str], gone: list[str]) -> None:  # noqa: ARG001
    autoscaling.remove_tags(request.region, physical_id, gone)


@updates(
    "AWS::AutoScaling::AutoScalingGroup",
    "CapacityReservationSpecification DefaultCooldown HealthCheckGracePeriod HealthCheckType LaunchTemplate MaxSize "
    "MinSize DesiredCapacity NewInstancesProtectedFromScaleIn NotificationConfigurations Tags TerminationPolicies "
    "VPCZoneIdentifier",
)
def _group(request: Request, before: Request, physical_id: str) -> None:
    """Change a group; its instances stay as they are (docs/aws-behaviour.md 1.9)."""
    properties = {**request.properties, "Tags": fleet.group_tags(request)}
    policy = request.update_policy.get("AutoScalingScheduledAction", {})
    if truth(policy.get("IgnoreUnmodifiedGroupSizeProperties")):
        same = [key for key in _SIZES if request.properties.get(key) == before.properties.get(key)]
        properties = {key: value for key, value in properties.items() if key not in same}
    autoscaling.update_group(request.context, request.region, physical_id, properties, request.settled)
    _retag(_tag_group, request, before, physical_id)


@updates("AWS::AutoScaling::ScheduledAction", "StartTime MinSize MaxSize DesiredCapacity")
def _scheduled_action(request: Request, before: Request, physical_id: str) -> None:  # noqa: ARG001
    autoscaling.put_scheduled_action(request.region, physical_id, request.properties)


# ---- IAM


def _tag_role(request: Request, physical_id: str, changed: dict[str, str], gone: list[str]) -> None:
    # IAM reserves tag keys that start with aws:, so CloudFormation doesn't set them on roles.
    own = [{"Key": key, "Value": value} for key, value in changed.items() if not key.startswith("aws:")]
    access.iam(request).tag_role(physical_id, own)
    access.iam(request).untag_role(physical_id, gone)


@updates(
    "AWS::IAM::Role",
    "AssumeRolePolicyDocument Description ManagedPolicyArns MaxSessionDuration PermissionsBoundary Policies",
)
def _role(request: Request, before: Request, physical_id: str) -> None:
    properties, backend = request.properties, access.iam(request)
    access.check_role(request)
    backend.update_assume_role_policy(physical_id, access.document(properties["AssumeRolePolicyDocument"]))
    backend.update_role(physical_id, properties.get("Description", ""), properties.get("MaxSessionDuration", 3600))
    if properties.get("PermissionsBoundary"):
        backend.put_role_permissions_boundary(physical_id, properties["PermissionsBoundary"])
    else:
        backend.delete_role_permissions_boundary(physical_id)
    _replace_policies(request, before, physical_id)
    _retag(_tag_role, request, before, physical_id)


def _replace_policies(request: Request, before: Request, role: str) -> None:
    """Set the role's policies, and remove those that the template no longer has; others' stay."""
    backend = access.iam(request)
    now, had = (
        {one["PolicyName"]: access.document(one["PolicyDocument"]) for one in asked.properties.get("Policies", [])}
        for asked in (request, before)
    )
    for name, text in now.items():
        backend.put_role_policy(role, name, text)
    for name in had.keys() - now.keys():
        backend.delete_role_policy(role, name)
    attached, was_attached = (set(asked.properties.get("ManagedPolicyArns", [])) for asked in (request, before))
    for arn in attached - was_attached:
        backend.attach_role_policy(arn, role)
    for arn in was_attached - attached:
        backend.detach_role_policy(arn, role)


@updates("AWS::IAM::Policy", "PolicyDocument PolicyName Roles")
def _policy(request: Request, before: Request, physical_id: str) -> None:  # noqa: ARG001
    text = access.document(request.properties["PolicyDocument"])
    now, had = (
        {(role, asked.properties["PolicyName"]) for role in asked.properties.get("Roles", [])}
        for asked in (request, before)
    )
    for role, name in now:
        access.iam(request).put_role_policy(role, name, text)
    for role, name in had - now:
        access.iam(request).delete_role_policy(role, name)


# ---- Lambda


def _tag_function(request: Request, physical_id: str, changed: dict[str, str], gone: list[str]) -> None:
    backend = functions.functions(request)
    arn = backend.get_function(physical_id).function_arn
    backend.tag_resource(arn, changed)
    backend.untag_resource(arn, gone)


@updates("AWS::Lambda::Function", "Code Description Environment Handler LoggingConfig MemorySize Role Runtime Timeout")
def _function(request: Request, before: Request, physical_id: str) -> None:
    backend, properties = functions.functions(request), request.properties
    if properties["Code"] != before.properties["Code"]:
        backend.update_function_code(physical_id, "$LATEST", {"ZipFile": functions.code(request)})
    backend.update_function_configuration(physical_id, "$LATEST", functions.configuration(properties))
    _retag(_tag_function, request, before, physical_id)


# ---- messages and data


def _tag_topic(request: Request, physical_id: str, changed: dict[str, str], gone: list[str]) -> None:
    messaging.sns(request).tag_resource(physical_id, changed)
    messaging.sns(request).untag_resource(physical_id, gone)


@updates("AWS::SNS::Topic", "DisplayName KmsMasterKeyId")
def _topic(request: Request, before: Request, physical_id: str) -> None:
    for key, attribute in (("DisplayName", "display_name"), ("KmsMasterKeyId", "kms_master_key_id")):
        if request.properties.get(key) != before.properties.get(key):
            messaging.sns(request).set_topic_attribute(physical_id, attribute, request.properties.get(key, ""))
    _retag(_tag_topic, request, before, physical_id)


@updates("AWS::SNS::Subscription", "FilterPolicy FilterPolicyScope RawMessageDelivery")
def _subscription(request: Request, before: Request, physical_id: str) -> None:
    if "FilterPolicy" in before.properties and "FilterPolicy" not in request.properties:
        raise ResourceFailed("The local cloud can't remove a subscription's filter policy")
    messaging.set_attributes(request, physical_id)


def _tag_queue(request: Request, physical_id: str, changed: dict[str, str], gone: list[str]) -> None:
    tags = messaging.sqs(request).get_queue(messaging.queue_name(physical_id)).tags
    tags.update(changed)
    for name in gone:
        tags.pop(name, None)


@updates("AWS::SQS::Queue", " ".join(messaging.QUEUE_ATTRIBUTES))
def _queue(request: Request, before: Request, physical_id: str) -> None:
    attributes = messaging.attributes_of(request.properties)
    messaging.sqs(request).set_queue_attributes(messaging.queue_name(physical_id), attributes)
    _retag(_tag_queue, request, before, physical_id)


@updates("AWS::SQS::QueuePolicy", "PolicyDocument Queues")
def _queue_policy(request: Request, before: Request, physical_id: str) -> None:  # noqa: ARG001
    gone = set(before.properties["Queues"]) - set(request.properties["Queues"])
    messaging.forget_policies(request, gone)
    messaging.set_policies(request)


@updates("AWS::SNS::TopicPolicy", "PolicyDocument Topics")
def _topic_policy(request: Request, before: Request, physical_id: str) -> None:  # noqa: ARG001
    messaging.set_topic_policies(request)


def _tag_file_system(request: Request, physical_id: str, changed: dict[str, str], gone: list[str]) -> None:
    storage.efs(request).tag_resource(physical_id, changed)
    storage.efs(request).untag_resource(physical_id, gone)


@updates("AWS::EFS::FileSystem", "FileSystemPolicy FileSystemTags ThroughputMode")
def _file_system(request: Request, before: Request, physical_id: str) -> None:
    found = storage.efs(request).file_systems_by_id[physical_id]
    wanted = request.properties.get("FileSystemPolicy")
    found.file_system_policy = json.dumps(wanted) if wanted else None
    found.throughput_mode = request.properties.get("ThroughputMode", "bursting")
    _retag(_tag_file_system, request, before, physical_id, "FileSystemTags")


def _tag_lustre(_request: Request, physical_id: str, changed: dict[str, str], gone: list[str]) -> None:
    tags = fsx.running().named(physical_id).tags
    tags.update(changed)
    for name in gone:
        tags.pop(name, None)


@updates("AWS::FSx::FileSystem", "StorageCapacity LustreConfiguration")
def _lustre(request: Request, before: Request, physical_id: str) -> None:
    had, now = (one.properties.get("LustreConfiguration", {}) for one in (before, request))
    changed = {key: value for key, value in now.items() if had.get(key) != value}
    size = request.properties.get("StorageCapacity")
    given = {"FileSystemId": physical_id, "StorageCapacity": size, "LustreConfiguration": changed}
    fsx.running().update(given)
    _retag(_tag_lustre, request, before, physical_id)


def _tag_table(request: Request, physical_id: str, changed: dict[str, str], gone: list[str]) -> None:
    backend = storage.tables(request)
    arn = backend.tables[physical_id].table_arn
    backend.untag_resource(arn, [*changed, *gone])
    backend.tag_resource(arn, changed)


@updates("AWS::DynamoDB::Table")
def _table(request: Request, before: Request, physical_id: str) -> None:
    _retag(_tag_table, request, before, physical_id)


def _tag_log_group(request: Request, physical_id: str, changed: dict[str, str], gone: list[str]) -> None:
    arn = storage.logs(request).groups[physical_id].arn
    storage.logs(request).tag_resource(arn, changed)
    storage.logs(request).untag_resource(arn, gone)


@updates("AWS::Logs::LogGroup", "RetentionInDays")
def _log_group(request: Request, before: Request, physical_id: str) -> None:
    days = request.properties.get("RetentionInDays")
    storage.logs(request).put_retention_policy(physical_id, None if days is None else str(days))
    _retag(_tag_log_group, request, before, physical_id)
