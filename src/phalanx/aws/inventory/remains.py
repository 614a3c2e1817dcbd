"""Find what still exists of a cluster: resources that its stack recorded, and everything with its tag or name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from phalanx.aws import lustre_file_systems, tags
from phalanx.aws.inventory import strays
from phalanx.aws.model import Resource
from phalanx.errors import CloudError

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

Call = tuple[str, str, str]
Found = TypeVar("Found")


# CloudFormation type → (service, operation, argument that takes the physical id). A type that is missing here is part
# of another (a route of its table, a permission of its function), or is found by its tag.
BY_ID: Mapping[str, Call] = {
    "AWS::SQS::Queue": ("sqs", "get_queue_attributes", "QueueUrl"),
    "AWS::DynamoDB::Table": ("dynamodb", "describe_table", "TableName"),
    "AWS::SNS::Topic": ("sns", "get_topic_attributes", "TopicArn"),
    "AWS::Lambda::Function": ("lambda", "get_function", "FunctionName"),
    "AWS::IAM::Role": ("iam", "get_role", "RoleName"),
    "AWS::Events::Rule": ("events", "describe_rule", "Name"),
    "AWS::EC2::LaunchTemplate": ("ec2", "describe_launch_template_versions", "LaunchTemplateId"),
    "AWS::IAM::InstanceProfile": ("iam", "get_instance_profile", "InstanceProfileName"),
}

# EC2 operation → (list in its answer, id of an entry, readable name). All of them take the filter tag:<key>.
_BY_TAG: Mapping[str, Call] = {
    "describe_vpcs": ("Vpcs", "VpcId", "VPC"),
    "describe_route_tables": ("RouteTables", "RouteTableId", "route table"),
    "describe_subnets": ("Subnets", "SubnetId", "subnet"),
    "describe_internet_gateways": ("InternetGateways", "InternetGatewayId", "internet gateway"),
    "describe_security_groups": ("SecurityGroups", "GroupId", "security group"),
    "describe_nat_gateways": ("NatGateways", "NatGatewayId", "NAT gateway"),
    "describe_vpc_endpoints": ("VpcEndpoints", "VpcEndpointId", "VPC endpoint"),
    "describe_addresses": ("Addresses", "AllocationId", "Elastic IP"),
    "describe_placement_groups": ("PlacementGroups", "GroupName", "placement group"),
    "describe_volumes": ("Volumes", "VolumeId", "volume"),
}
SERVICES = ("ec2", "autoscaling", "efs", "fsx", "logs", "sqs", "dynamodb", "sns", "lambda", "iam", "events")
"""The services that `find` queries."""

_ENDED = frozenset({"terminated", "deleted", "deleting"})


Trouble = Callable[[CloudError], None]
"""What to do with the error of a service that does not answer, in place of raising it."""


def find(api: Aws, cluster: str, resources: Sequence[Resource], trouble: Trouble | None = None) -> list[str]:
    """Return a readable line for each thing that still exists.

    Raises CloudError for a service that does not answer, or passes that to `trouble` and goes on with the others.
    """
    looks: list[Callable[[], Iterator[str]]] = [
        # Before its instances, which the service would replace.
        lambda: api.machines.leftovers(cluster, resources),
        lambda: _tagged_instances(api, cluster),
        lambda: _tagged_in_ec2(api, cluster),
        lambda: _groups(api, resources),
        lambda: _file_systems(api, resources),
        lambda: _log_groups(api, resources),
        lambda: _recorded(api, resources),
    ]
    # The stack's own resources first: while they end, the others need not be listed.
    if lines := [line for look in looks for line in answered(look, trouble)]:
        return lines
    return [line for look in strays.LOOKS for line in answered(partial(look, api, cluster), trouble)]


def answered(look: Callable[[], Iterable[Found]], trouble: Trouble | None) -> Iterator[Found]:
    """Yield what `look` finds until a service does not answer, which `trouble` takes if there is one."""
    try:
        yield from look()
    except CloudError as error:
        if trouble is None:
            raise
        trouble(error)


def _tagged_instances(api: Aws, cluster: str) -> Iterator[str]:
    for reservation in api.pages("ec2", "describe_instances", "Reservations", Filters=tags.filters(cluster)):
        for instance in reservation["Instances"]:
            state = instance["State"]["Name"]
            if state != "terminated" and tags.is_of(instance, cluster):
                yield f"instance {instance['InstanceId']} ({state})"


def _tagged_in_ec2(api: Aws, cluster: str) -> Iterator[str]:
    for operation, (listed, key, kind) in _BY_TAG.items():
        for entry in api.pages("ec2", operation, listed, Filters=tags.filters(cluster)):
            # A server may ignore the filter: what it answers counts only with the tag.
            if entry.get("State") not in _ENDED and tags.is_of(entry, cluster):
                yield f"{kind} {entry[key]}"


def _groups(api: Aws, resources: Sequence[Resource]) -> Iterator[str]:
    names = _physical(resources, "AWS::AutoScaling::AutoScalingGroup")
    if names:
        answer = api.exists("autoscaling", "describe_auto_scaling_groups", AutoScalingGroupNames=names) or {}
        for group in (one for one in answer.get("AutoScalingGroups", []) if one["AutoScalingGroupName"] in names):
            yield f"Auto Scaling group {group['AutoScalingGroupName']}"


def _file_systems(api: Aws, resources: Sequence[Resource]) -> Iterator[str]:
    for file_system in _physical(resources, "AWS::EFS::FileSystem"):
        answer = api.exists("efs", "describe_file_systems", FileSystemId=file_system) or {}
        for entry in answer.get("FileSystems", []):
            if entry["FileSystemId"] == file_system and entry.get("LifeCycleState") not in _ENDED:
                yield f"file system {file_system}"
    for file_system in _physical(resources, "AWS::FSx::FileSystem"):
        if found := lustre_file_systems.describe(api, file_system):
            yield f"Lustre file system {file_system} ({found['Lifecycle']})"


def _log_groups(api: Aws, resources: Sequence[Resource]) -> Iterator[str]:
    for name in _physical(resources, "AWS::Logs::LogGroup"):
        answer = api.exists("logs", "describe_log_groups", logGroupNamePrefix=name) or {}
        if any(group["logGroupName"] == name for group in answer.get("logGroups", [])):
            yield f"log group {name}"


def _recorded(api: Aws, resources: Sequence[Resource]) -> Iterator[str]:
    for resource in resources:
        if resource.resource_type in BY_ID and resource.physical_id:
            service, operation, argument = BY_ID[resource.resource_type]
            if api.exists(service, operation, **{argument: resource.physical_id}) is not None:
                yield f"{resource.logical_id} {resource.physical_id}"


def _physical(resources: Sequence[Resource], resource_type: str) -> list[str]:
    return [resource.physical_id for resource in resources if resource.resource_type == resource_type]
