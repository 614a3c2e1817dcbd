"""Which resources a call touches, and with which condition keys: the part of AWS's authorization reference we need.

What is not in the table is judged as a call on all resources; a policy that names single ones is not judged at all.
Source: AWS service authorization reference; docs/aws-behaviour.md 6.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from moto.autoscaling.exceptions import ValidationError
from moto.dynamodb.models import dynamodb_backends
from moto.ec2.models import ec2_backends
from moto.efs.models import efs_backends

from localcloud.api import partitions
from localcloud.autoscaling import group_named, group_of
from localcloud.autoscaling.group import Group
from localcloud.cloudformation.model import STACKS
from localcloud.cloudformation.rights import BOUNDED
from localcloud.emr.records import TAGS
from localcloud.iam.calls import Call
from localcloud.iam.credentials import role_of
from localcloud.iam.keys import arn_of
from localcloud.iam.policy import Keys

_PASSING = {
    "lambda:CreateFunction": "lambda.amazonaws.com",
    "lambda:UpdateFunctionConfiguration": "lambda.amazonaws.com",
}


@dataclass(frozen=True)
class Target:
    """A resource for which the call must be allowed, with the condition keys that belong to it."""

    arn: str
    keys: Keys = field(default_factory=dict)


Finder = Callable[[Call, str], Iterable[Target]]
ANY = "*"
EVERYTHING = (Target(ANY),)


def targets(call: Call, account: str) -> list[Target] | None:
    """Return all resources of the call; None for an operation that the table does not contain."""
    finder = TABLE.get(call.action)
    if finder is None and call.action.startswith(_DESCRIBING):
        finder = everything
    return list(finder(call, account)) if finder else None


def everything(_call: Call, _account: str) -> Iterator[Target]:
    """Operations without resource-level permissions."""
    yield Target(ANY)


def metrics(call: Call, _account: str) -> Iterator[Target]:
    """CloudWatch: no resources, but the namespace that is written to."""
    yield Target(ANY, {"cloudwatch:namespace": [str(call.params.get("Namespace", ""))]})


def queue(call: Call, account: str) -> Iterator[Target]:
    """SQS: by URL or by name."""
    name = str(call.params.get("QueueUrl") or call.params.get("QueueName") or "").rstrip("/").rpartition("/")[2]
    yield Target(f"{partitions.arn()}:sqs:{call.region}:{account}:{name}")


def topic(call: Call, _account: str) -> Iterator[Target]:
    """SNS."""
    yield Target(str(call.params.get("TopicArn") or call.params.get("TargetArn") or ANY))


def group(call: Call, account: str) -> Iterator[Target]:
    """Auto Scaling, by the group's name."""
    name = str(call.params.get("AutoScalingGroupName", ""))
    yield _group(call, account, name, lambda: group_named(call.region, name))


def group_of_instance(call: Call, account: str) -> Iterator[Target]:
    """Auto Scaling, operations that name only an instance: the group that it is in."""
    yield _group(call, account, "", lambda: group_of(call.region, str(call.params.get("InstanceId", ""))))


def _group(call: Call, account: str, name: str, find: Callable[[], Group]) -> Target:
    try:
        found = find()
    except ValidationError:
        # The call is authorized for an unknown group by its name; its id can be anything.
        place = f"{partitions.arn()}:autoscaling:{call.region}:{account}"
        return Target(f"{place}:autoScalingGroup:*:autoScalingGroupName/{name}")
    tags = {tag["Key"]: tag.get("Value", "") for tag in found.tags}
    return Target(found.arn, _tag_keys("autoscaling", tags))


def log_stream(call: Call, account: str) -> Iterator[Target]:
    """CloudWatch Logs, operations on a stream."""
    yield Target(f"{_log_group_arn(call, account)}:log-stream:{call.params.get('logStreamName', '')}")


def log_group(call: Call, account: str) -> Iterator[Target]:
    """CloudWatch Logs, operations on a group. AWS uses an ARN with this ending, which `log-group:NAME:*` matches."""
    yield Target(f"{_log_group_arn(call, account)}:log-stream:")


def parameter(call: Call, account: str) -> Iterator[Target]:
    """Systems Manager parameters; public ones have no account in their ARN."""
    for name in [*call.values("Names"), *call.values("Name"), *call.values("Path")]:
        owner = "" if name.startswith("/aws/") else account
        yield Target(f"{partitions.arn()}:ssm:{call.region}:{owner}:parameter/{name.lstrip('/')}")


def bucket(call: Call, _account: str) -> Iterator[Target]:
    """S3, operations on a bucket; a policy may restrict a listing to a prefix."""
    prefix = [str(call.params.get("prefix", ""))]
    yield Target(f"{partitions.arn()}:s3:::{call.params.get('Bucket', '')}", {"s3:prefix": prefix})


def an_object(call: Call, _account: str) -> Iterator[Target]:
    """S3, operations on an object."""
    yield Target(f"{partitions.arn()}:s3:::{call.params.get('Bucket', '')}/{call.params.get('Key', '')}")


def stack(call: Call, account: str) -> Iterator[Target]:
    """CloudFormation, by stack id or name."""
    name = str(call.params.get("StackName") or STACKS.get(str(call.params.get("ChangeSetName")), ANY))
    yield Target(_named(call, account, "cloudformation", "stack/", name, "/*"))


def iam_role(call: Call, account: str) -> Iterator[Target]:
    """IAM, operations on a role, with its permissions boundary or the one that it shall have (6.5)."""
    name, path = str(call.params.get("RoleName", ANY)), str(call.params.get("Path", "/"))
    role = role_of(account, name)
    wanted = call.params.get("PermissionsBoundary") or (role.permissions_boundary_arn if role else None)
    keys = {"iam:permissionsboundary": [str(wanted)]} if wanted and call.action in BOUNDED else {}
    if "PolicyArn" in call.params:
        keys["iam:policyarn"] = [str(call.params["PolicyArn"])]
    yield Target(role.arn if role else f"{partitions.arn()}:iam::{account}:role{path}{name}", keys)


def launch(call: Call, account: str) -> Iterator[Target]:
    """EC2, RunInstances: what it uses and what it makes (docs/aws-behaviour.md 6.2)."""
    place = f"{partitions.arn()}:ec2:{call.region}:{account}"
    yield Target(f"{partitions.arn()}:ec2:{call.region}::image/{call.params.get('ImageId', ANY)}")
    yield Target(f"{place}:subnet/{call.params.get('SubnetId', ANY)}")
    for kind in ("instance", "network-interface", "security-group", "volume"):
        yield Target(f"{place}:{kind}/{ANY}")
    if "KeyName" in call.params:
        yield Target(f"{place}:key-pair/{call.params['KeyName']}")


def principal(call: Call, _account: str) -> Iterator[Target]:
    """IAM, the policy simulator: whose policies it evaluates."""
    yield Target(str(call.params.get("PolicySourceArn", ANY)))


def passed(call: Call, account: str) -> Iterator[tuple[str, str]]:
    """Yield the ARNs of the roles that a call passes on, each with the service that gets it (6.5)."""
    adds = call.action == "iam:AddRoleToInstanceProfile"
    service = partitions.ec2() if adds else _PASSING.get(call.action, "")
    named = str(call.params.get("RoleName" if call.service == "iam" else "Role", "")) if service else ""
    if named:
        role = role_of(account, named.rpartition("/")[2])
        yield (role.arn if role else f"{partitions.arn()}:iam::{account}:role/{named}"), service


def _named(call: Call, account: str, service: str, kind: str, name: str, rest: str = "") -> str:
    """Return the ARN of what a call names by its ARN or by its name."""
    place = f"{partitions.arn()}:{service}:{call.region}:{account}"
    return name if name.startswith("arn:") else f"{place}:{kind}{name}{rest}"


def instance_profile(call: Call, account: str) -> Iterator[Target]:
    """IAM, operations on an instance profile."""
    name = call.params.get("InstanceProfileName", ANY)
    yield Target(f"{partitions.arn()}:iam::{account}:instance-profile/{name}")


def function(call: Call, account: str) -> Iterator[Target]:
    """Lambda, by the function's name or ARN."""
    name = str(call.params.get("FunctionName") or call.params.get("Resource") or ANY)
    yield Target(_named(call, account, "lambda", "function:", name))


def rule(call: Call, account: str) -> Iterator[Target]:
    """EventBridge, by the rule's name or ARN."""
    name = str(call.params.get("Name") or call.params.get("ResourceARN") or ANY)
    yield Target(_named(call, account, "events", "rule/", name))


def file_system(call: Call, account: str) -> Iterator[Target]:
    """EFS, by the file system's id or a mount target's; a description may be of all of them."""
    backend = efs_backends[account][call.region]
    mounted = backend.mount_targets_by_id.get(str(call.params.get("MountTargetId")))
    given = mounted.file_system_id if mounted else str(call.params.get("FileSystemId") or ANY)
    found = backend.file_systems_by_id.get(given)
    tags = {tag["Key"]: tag["Value"] for tag in (found.info_json()["Tags"] if found else ())}
    arn = f"{partitions.arn()}:elasticfilesystem:{call.region}:{account}:file-system/{given}"
    yield Target(arn, _tag_keys("elasticfilesystem", tags))


def key(call: Call, account: str) -> Iterator[Target]:
    """KMS: the key that a name stands for."""
    yield Target(arn_of(account, call.region, str(call.params.get("KeyId", ANY))))


def managed_policy(call: Call, _account: str) -> Iterator[Target]:
    """IAM, operations on a managed policy."""
    yield Target(str(call.params.get("PolicyArn", ANY)))


def vpc(call: Call, account: str) -> Iterator[Target]:
    """EC2, the one description of a VPC that has a resource."""
    yield _ec2(call, account, "vpc", str(call.params.get("VpcId", ANY)))


def quota(call: Call, account: str) -> Iterator[Target]:
    """Service Quotas, one quota of a service."""
    given = f"{call.params.get('ServiceCode')}/{call.params.get('QuotaCode')}"
    yield Target(f"{partitions.arn()}:servicequotas:{call.region}:{account}:{given}")


def security_group(call: Call, account: str) -> Iterator[Target]:
    """EC2, operations on a security group."""
    yield _ec2(call, account, "security-group", str(call.params.get("GroupId", ANY)))


def vpc_endpoints(call: Call, account: str) -> Iterator[Target]:
    """EC2, operations on VPC endpoints."""
    for endpoint in call.values("VpcEndpointId"):
        yield _ec2(call, account, "vpc-endpoint", endpoint)


def job_flow(call: Call, account: str) -> Iterator[Target]:
    """EMR, by the cluster's id; TerminateJobFlows and SetTerminationProtection name several."""
    given = call.params.get("ClusterId") or call.params.get("JobFlowId") or call.params.get("ResourceId")
    for cluster_id in [given] if given else call.params.get("JobFlowIds") or []:
        tags = TAGS.get(cluster_id, {})
        arn = f"{partitions.arn()}:elasticmapreduce:{call.region}:{account}:cluster/{cluster_id}"
        yield Target(arn, _tag_keys("elasticmapreduce", tags))


def addresses(call: Call, account: str) -> Iterator[Target]:
    """AssociateAddress: the address (or its id), and the instance or interface that receives it."""
    if public := call.params.get("PublicIp"):
        known = ec2_backends[account][call.region].addresses
        allocation = next((a.allocation_id for a in list(known) if a.public_ip == public), "*")
        yield _ec2(call, account, "elastic-ip", str(allocation))
    kinds = (
        ("AllocationId", "elastic-ip"),
        ("InstanceId", "instance"),
        ("NetworkInterfaceId", "network-interface"),
    )
    for name, kind in kinds:
        if value := call.params.get(name):
            yield _ec2(call, account, kind, str(value))


def association(call: Call, account: str) -> Iterator[Target]:
    """DisassociateAddress: the address of the association that it names."""
    backend = ec2_backends[account][call.region]
    wanted = call.params.get("AssociationId")
    for address in list(backend.addresses):
        if address.association_id == wanted:
            yield _ec2(call, account, "elastic-ip", str(address.allocation_id))
            return
    yield Target(f"{partitions.arn()}:ec2:{call.region}:{account}:elastic-ip/*")


def instances(call: Call, account: str) -> Iterator[Target]:
    """EC2, operations on instances."""
    for instance_id in call.values("InstanceId"):
        yield _ec2(call, account, "instance", instance_id)


def without_account(call: Call, account: str) -> Iterator[Target]:
    """EC2, operations on an image or a snapshot."""
    for name, kind in (("ImageId", "image"), ("SnapshotId", "snapshot")):
        for one in call.values(name):
            yield _ec2(call, account, kind, one)


# What ids begin with → the type in an ARN.
_KINDS = {"i": "instance", "ami": "image", "snap": "snapshot", "vol": "volume"}


def tagged(call: Call, account: str) -> Iterator[Target]:
    """CreateTags and DeleteTags, on what people and nodes tag themselves."""
    for resource_id in call.values("ResourceId"):
        yield _ec2(call, account, _KINDS.get(resource_id.partition("-")[0], ANY), resource_id)


def _ec2(call: Call, account: str, kind: str, resource_id: str) -> Target:
    found = {
        t["key"]: t["value"] for t in ec2_backends[account][call.region].describe_tags({"resource-id": [resource_id]})
    }
    owner = "" if kind in ("image", "snapshot") else account
    return Target(f"{partitions.arn()}:ec2:{call.region}:{owner}:{kind}/{resource_id}", _tag_keys("ec2", found))


def _tag_keys(service: str, tags: dict[str, str]) -> dict[str, list[str]]:
    prefixes = ("aws:resourcetag/", f"{service}:resourcetag/")
    return {f"{prefix}{name.lower()}": [value] for prefix in prefixes for name, value in tags.items()}


def _log_group_arn(call: Call, account: str) -> str:
    return f"{partitions.arn()}:logs:{call.region}:{account}:log-group:{call.params.get('logGroupName', '')}"


def table(call: Call, account: str) -> Iterator[Target]:
    """DynamoDB: the table, or the index that is queried, with the partition keys touched."""
    name = str(call.params.get("TableName", ""))
    keys = {"dynamodb:leadingkeys": _leading_keys(call, account, name)}
    yield Target(_table_arn(call, account, name, call.params.get("IndexName")), keys)


def batch_tables(call: Call, account: str) -> Iterator[Target]:
    """DynamoDB's batches name several tables."""
    for name, content in (call.params.get("RequestItems") or {}).items():
        requests = content if isinstance(content, list) else content.get("Keys", [])
        key = _partition_key(call, account, name)
        found = [_text(_batch_item(request).get(key)) for request in requests]
        yield Target(_table_arn(call, account, name), {"dynamodb:leadingkeys": found})


def _table_arn(call: Call, account: str, name: str, index: Any = None) -> str:
    arn = name if name.startswith("arn:") else f"{partitions.arn()}:dynamodb:{call.region}:{account}:table/{name}"
    return f"{arn}/index/{index}" if index else arn


def _leading_keys(call: Call, account: str, name: str) -> list[str]:
    """Return the values of the partition key in the call; none for a scan."""
    item = call.params.get("Key") or call.params.get("Item")
    if item:
        return [_text(item.get(_partition_key(call, account, name)))]
    # In a query, the condition compares the partition key first.
    condition = str(call.params.get("KeyConditionExpression", ""))
    values = call.params.get("ExpressionAttributeValues") or {}
    first = re.search(r"=\s*(:\w+)", condition)
    return [_text(values.get(first.group(1)))] if first else []


def _partition_key(call: Call, account: str, name: str) -> str:
    found = dynamodb_backends[account][call.region].tables.get(name.rpartition("/")[2])
    return str(found.hash_key_attr) if found else ""


def _text(value: dict[str, Any] | None) -> str:
    """Return the value of an attribute: "x" for {"S": "x"}."""
    return str(next(iter(value.values()))) if value else ""


def _batch_item(request: dict[str, Any]) -> dict[str, Any]:
    put, delete = request.get("PutRequest"), request.get("DeleteRequest")
    return put.get("Item", {}) if put else delete.get("Key", {}) if delete else request


# Read-only operations that AWS authorizes on "*" alone (docs/aws-behaviour.md 6).
_DESCRIBING = ("ec2:Describe", "autoscaling:Describe")

# What finds the resources of a call → the actions that it is for.
_ACTIONS: dict[Finder, str] = {
    queue: """
        sqs:ChangeMessageVisibility sqs:DeleteMessage sqs:GetQueueAttributes sqs:GetQueueUrl sqs:PurgeQueue
        sqs:ReceiveMessage sqs:SendMessage""",
    table: """
        dynamodb:DeleteItem dynamodb:DescribeTable dynamodb:GetItem dynamodb:PutItem dynamodb:Query dynamodb:Scan
        dynamodb:UpdateItem""",
    batch_tables: "dynamodb:BatchGetItem dynamodb:BatchWriteItem",
    metrics: "cloudwatch:PutMetricData",
    topic: "sns:GetTopicAttributes sns:Publish",
    job_flow: """
        elasticmapreduce:AddJobFlowSteps elasticmapreduce:AddTags elasticmapreduce:CancelSteps
        elasticmapreduce:DescribeCluster elasticmapreduce:DescribeStep elasticmapreduce:ListBootstrapActions
        elasticmapreduce:ListInstanceGroups elasticmapreduce:ListInstances elasticmapreduce:ListSteps
        elasticmapreduce:ModifyInstanceGroups elasticmapreduce:RemoveTags elasticmapreduce:SetTerminationProtection
        elasticmapreduce:TerminateJobFlows""",
    everything: """
        elasticmapreduce:ListClusters elasticmapreduce:RunJobFlow logs:DescribeLogGroups pricing:GetProducts
        servicequotas:GetAWSDefaultServiceQuota tag:GetResources""",
    group: """
        autoscaling:DeleteScheduledAction autoscaling:PutScheduledUpdateGroupAction autoscaling:ResumeProcesses
        autoscaling:SetDesiredCapacity autoscaling:SetInstanceProtection autoscaling:SuspendProcesses
        autoscaling:UpdateAutoScalingGroup""",
    group_of_instance: "autoscaling:SetInstanceHealth autoscaling:TerminateInstanceInAutoScalingGroup",
    log_stream: "logs:CreateLogStream logs:GetLogEvents logs:PutLogEvents",
    log_group: """
        logs:CreateLogGroup logs:DeleteLogGroup logs:DescribeLogStreams logs:FilterLogEvents logs:PutRetentionPolicy""",
    parameter: "ssm:GetParameter ssm:GetParameters ssm:GetParametersByPath ssm:PutParameter",
    bucket: "s3:GetBucketPolicyStatus s3:GetBucketPublicAccessBlock s3:GetEncryptionConfiguration s3:ListBucket",
    an_object: "s3:AbortMultipartUpload s3:DeleteObject s3:GetObject s3:ListMultipartUploadParts s3:PutObject",
    addresses: "ec2:AssociateAddress",
    association: "ec2:DisassociateAddress",
    without_account: "ec2:DeleteSnapshot ec2:DeregisterImage",
    instances: "ec2:TerminateInstances",
    tagged: "ec2:CreateTags ec2:DeleteTags",
    iam_role: """
        iam:DeleteRole iam:GetRole iam:ListAttachedRolePolicies iam:ListRolePolicies iam:TagRole
        iam:UpdateAssumeRolePolicy iam:UpdateRole""",
    instance_profile: "iam:AddRoleToInstanceProfile iam:GetInstanceProfile",
    function: "lambda:CreateFunction lambda:GetFunction lambda:ListTags lambda:UpdateFunctionConfiguration",
    rule: "events:DescribeRule events:ListTagsForResource",
    file_system: """
        elasticfilesystem:DeleteFileSystem elasticfilesystem:DescribeFileSystems
        elasticfilesystem:DescribeMountTargetSecurityGroups elasticfilesystem:DescribeMountTargets""",
    key: "kms:DescribeKey kms:GetKeyPolicy kms:ListGrants",
    vpc: "ec2:DescribeVpcAttribute",
    launch: "ec2:RunInstances",
    managed_policy: "iam:GetPolicy",
    principal: "iam:SimulatePrincipalPolicy",
    quota: "servicequotas:GetServiceQuota",
    security_group: "ec2:AuthorizeSecurityGroupIngress ec2:DeleteSecurityGroup",
    vpc_endpoints: "ec2:DeleteVpcEndpoints",
    stack: """
        cloudformation:CreateChangeSet cloudformation:CreateStack cloudformation:DeleteChangeSet
        cloudformation:DeleteStack cloudformation:DescribeChangeSet cloudformation:DescribeEvents
        cloudformation:DescribeStackEvents
        cloudformation:DescribeStackResource cloudformation:DescribeStacks cloudformation:ExecuteChangeSet
        cloudformation:GetTemplate cloudformation:ListChangeSets cloudformation:ListStackResources
        cloudformation:SignalResource""",
}
TABLE: dict[str, Finder] = {
    **{action: finder for finder, actions in _ACTIONS.items() for action in actions.split()},
    **dict.fromkeys(BOUNDED, iam_role),
}
