"""What CloudFormation does with its caller's rights: the calls that make, change and delete each type of resource.

A role's session that creates, updates or deletes a stack needs every one of them, as on AWS. rights.json has them, from
the handlers' permissions in AWS's resource schemas. Those for certain properties are needed only with these. A type
without a row needs none here.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localcloud.accounts import OWNER, SUBNETS
from localcloud.api import partitions
from localcloud.cloudformation.errors import ResourceFailed
from localcloud.iam import keys
from localcloud.iam.policy import Ask

if TYPE_CHECKING:
    from localcloud.iam.credentials import May

# Type → the resource that its calls are about.
_RESOURCES: Mapping[str, str] = {
    "AWS::AutoScaling::AutoScalingGroup": "autoScalingGroup:1:autoScalingGroupName/{name}",
    "AWS::AutoScaling::ScheduledAction": "autoScalingGroup:1:autoScalingGroupName/{name}",
    "AWS::DynamoDB::Table": "table/{name}",
    "AWS::EC2::EIP": "elastic-ip/1",
    "AWS::EC2::InternetGateway": "internet-gateway/1",
    "AWS::EC2::LaunchTemplate": "launch-template/1",
    "AWS::EC2::NatGateway": "natgateway/1",
    "AWS::EC2::PlacementGroup": "placement-group/1",
    "AWS::EC2::Route": "route-table/1",
    "AWS::EC2::RouteTable": "route-table/1",
    "AWS::EC2::SecurityGroup": "security-group/1",
    "AWS::EC2::SecurityGroupEgress": "security-group/1",
    "AWS::EC2::SecurityGroupIngress": "security-group/1",
    "AWS::EC2::Subnet": "subnet/1",
    "AWS::EC2::SubnetRouteTableAssociation": "route-table/1",
    "AWS::EC2::VPC": "vpc/1",
    "AWS::EC2::VPCEndpoint": "vpc-endpoint/1",
    "AWS::EC2::VPCGatewayAttachment": "internet-gateway/1",
    "AWS::EFS::FileSystem": "file-system/{name}",
    "AWS::EFS::MountTarget": "file-system/{name}",
    "AWS::EMR::Cluster": "cluster/1",
    "AWS::Events::Rule": "rule/{name}",
    "AWS::FSx::DataRepositoryAssociation": "association/fs-1/dra-1",
    "AWS::FSx::FileSystem": "file-system/1",
    "AWS::IAM::InstanceProfile": "instance-profile/{name}",
    "AWS::IAM::Policy": "role/{name}",
    "AWS::IAM::Role": "role/{name}",
    "AWS::ImageBuilder::Component": "component/{name}",
    "AWS::ImageBuilder::DistributionConfiguration": "distribution-configuration/{name}",
    "AWS::ImageBuilder::Image": "image/{name}",
    "AWS::ImageBuilder::ImageRecipe": "image-recipe/{name}",
    "AWS::ImageBuilder::InfrastructureConfiguration": "infrastructure-configuration/{name}",
    "AWS::Lambda::Function": "function:{name}",
    "AWS::Lambda::Permission": "function:{name}",
    "AWS::Logs::LogGroup": "log-group:{name}",
    "AWS::SNS::Subscription": "{name}",
    "AWS::SNS::Topic": "{name}",
    "AWS::SQS::Queue": "{name}",
    "AWS::SQS::QueuePolicy": "{name}",
}
# Actions about other resources than the one that is made, or about more than it (docs/aws-behaviour.md 6.2).
_TARGETS: Mapping[str, str] = {
    **dict.fromkeys(("ec2:AssociateRouteTable", "ec2:DisassociateRouteTable"), "route-table/1 subnet/1"),
    **dict.fromkeys(("ec2:AttachInternetGateway", "ec2:DetachInternetGateway"), "internet-gateway/1 vpc/1"),
    "ec2:CreateNatGateway": "elastic-ip/1 natgateway/1 subnet/1",
    "ec2:CreateNetworkInterface": "network-interface/1 security-group/1 subnet/1",
    "ec2:CreateRouteTable": "route-table/1 vpc/1",
    "ec2:CreateSecurityGroup": "security-group/1 vpc/1",
    "ec2:CreateSubnet": "subnet/1 vpc/1",
    "ec2:CreateVpcEndpoint": "route-table/1 security-group/1 subnet/1 vpc/1 vpc-endpoint/1",
    "ec2:ModifyVpcEndpoint": "route-table/1 security-group/1 subnet/1 vpc-endpoint/1",
    "ec2:DeleteNetworkInterface": "network-interface/1",
    # A key pair, a placement group and a reservation are named by few launch templates.
    "ec2:ReplaceRouteTableAssociation": "route-table/1 subnet/1",
    "ec2:RunInstances": "image/1 instance/1 launch-template/1 network-interface/1 security-group/1 subnet/1 volume/1",
    "fsx:CreateDataRepositoryAssociation": "association/fs-1/dra-1 file-system/1",
    "iam:PassRole": "role/{role}",
    "imagebuilder:GetComponent": "component/{name}",
    "imagebuilder:GetDistributionConfiguration": "distribution-configuration/{name}",
    "imagebuilder:GetImage": "image/{name}",
    "imagebuilder:GetImageRecipe": "image-recipe/{name}",
    "imagebuilder:GetInfrastructureConfiguration": "infrastructure-configuration/{name}",
    # Its id is the service's own.
    "imagebuilder:GetLifecycleExecution": "lifecycle-execution/lce-1",
    "route53:AssociateVPCWithHostedZone": "hostedzone/1",
    **dict.fromkeys(("s3:GetBucketPolicy", "s3:ListBucket", "s3:PutBucketPolicy"), "{bucket}"),
    "ssm:GetParameter": "parameter/aws/service/1",
}
BOUNDED = frozenset(
    {
        *("iam:AttachRolePolicy", "iam:CreateRole", "iam:DeleteRolePermissionsBoundary", "iam:DeleteRolePolicy"),
        *("iam:DetachRolePolicy", "iam:PutRolePermissionsBoundary", "iam:PutRolePolicy"),
    }
)
"""The actions for which IAM tells a policy the role's permissions boundary (docs/aws-behaviour.md 6.5)."""
_OF_KEYS = "kms:"
# Types whose service has another name in the keys of conditions.
_SERVICES = {"efs": "elasticfilesystem"}
_ATTACHING = ("iam:AttachRolePolicy", "iam:DetachRolePolicy")
# Type → the services that get its role.
_PASSED_TO: Mapping[str, tuple[str, ...]] = {
    "AWS::AutoScaling::AutoScalingGroup": ("ec2",),
    "AWS::EMR::Cluster": ("elasticmapreduce", "ec2"),
    "AWS::IAM::InstanceProfile": ("ec2",),
    "AWS::ImageBuilder::Image": ("imagebuilder",),
    "AWS::ImageBuilder::InfrastructureConfiguration": ("ec2",),
    "AWS::Lambda::Function": ("lambda",),
}
OF_EFS = "ec2:DeleteNetworkInterface"
"""About an interface that EFS has made, which has none of the stack's tags."""
# What an ARN has in place of the region and the account.
_PLACES = {"iam": ":{account}", "route53": ":", "s3": ":"}
_WITHOUT_ACCOUNT = ("ec2:image/", "ssm:parameter/aws/")
# Image Builder works with a role of its own, which the first call makes (docs/aws-behaviour.md 9.12).
_OWN_ROLE = "role/aws-service-role/imagebuilder.amazonaws.com/AWSServiceRoleForImageBuilder"
# The same of Auto Scaling, EFS, FSx and EMR (docs/aws-behaviour.md 6.3). This is always an account's first call.
_SCALING_ROLE = "role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
_EFS_ROLE = "role/aws-service-role/elasticfilesystem.amazonaws.com/AWSServiceRoleForAmazonElasticFileSystem"
_EMR_ROLE = "role/aws-service-role/elasticmapreduce.amazonaws.com/AWSServiceRoleForEMRCleanup"
_FSX_ROLE = "role/aws-service-role/fsx.amazonaws.com/AWSServiceRoleForAmazonFSx"
# FSx makes one for each link to S3 (docs/aws-behaviour.md 4.13).
_LINK_ROLE = "role/aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_fs-1"
_OF_IMAGES = ("Component", "DistributionConfiguration", "Image", "ImageRecipe", "InfrastructureConfiguration")
_DELETION_ROLE = "role/{stack}-DeletionRole-0123456789AB"
# (Type, action) → the other resource that this call of its handlers is about.
_OTHERS: Mapping[tuple[str, str], str] = {
    ("AWS::AutoScaling::AutoScalingGroup", "iam:CreateServiceLinkedRole"): _SCALING_ROLE,
    ("AWS::EFS::MountTarget", "iam:CreateServiceLinkedRole"): _EFS_ROLE,
    ("AWS::EMR::Cluster", "iam:CreateServiceLinkedRole"): _EMR_ROLE,
    ("AWS::FSx::DataRepositoryAssociation", "iam:AttachRolePolicy"): _LINK_ROLE,
    ("AWS::FSx::DataRepositoryAssociation", "iam:CreateServiceLinkedRole"): _LINK_ROLE,
    ("AWS::FSx::DataRepositoryAssociation", "iam:PutRolePolicy"): _LINK_ROLE,
    ("AWS::FSx::FileSystem", "iam:CreateServiceLinkedRole"): _FSX_ROLE,
    **{(f"AWS::ImageBuilder::{kind}", "iam:CreateServiceLinkedRole"): _OWN_ROLE for kind in _OF_IMAGES},
    **{(f"AWS::ImageBuilder::{kind}", "iam:GetRole"): _OWN_ROLE for kind in _OF_IMAGES},
    ("AWS::ImageBuilder::Image", "iam:PassRole"): _DELETION_ROLE,
    ("AWS::ImageBuilder::InfrastructureConfiguration", "iam:PassRole"): "role/{stack}-BuildRole-0123456789AB",
    ("AWS::ImageBuilder::InfrastructureConfiguration", "iam:GetInstanceProfile"): (
        "instance-profile/{stack}-BuildProfile-0123456789AB"
    ),
    ("AWS::Lambda::Function", "elasticfilesystem:DescribeMountTargets"): "file-system/1",
}
# What is done → the handlers that CloudFormation calls. It does not say when it reads and lists: so it may at any time.
_HANDLERS = {"create": ("create", "read", "list"), "update": ("update", "read", "list"), "delete": ("delete",)}
# Types whose calls are about another resource → the property that names it.
_ABOUT = {
    "AWS::AutoScaling::ScheduledAction": "AutoScalingGroupName",
    "AWS::EFS::MountTarget": "FileSystemId",
    "AWS::IAM::Policy": "Roles",
    "AWS::Lambda::Permission": "FunctionName",
    "AWS::SNS::Subscription": "TopicArn",
    "AWS::SQS::QueuePolicy": "Queues",
}
# Types that a template may name → the property.
_OWN_NAMES = {
    "AWS::ImageBuilder::Component": "Name",
    "AWS::ImageBuilder::DistributionConfiguration": "Name",
    "AWS::ImageBuilder::ImageRecipe": "Name",
    "AWS::ImageBuilder::InfrastructureConfiguration": "Name",
    "AWS::Logs::LogGroup": "LogGroupName",
}


def require(
    may: May | None,
    kind: str,
    stack: str,
    place: str,
    tags: Mapping[str, str],
    doing: str,
    name: str = "",
    properties: Mapping[str, Any] | None = None,
    boundary: str = "",
) -> None:
    """Raise ResourceFailed, in AWS's words, unless the caller may create, update or delete a resource of this type.

    `place` is the region and the account, as in an ARN; `tags` are those that the stack gives its resources; `name` is
    the resource's own, and `properties` those that it has. `boundary` is that of the role that a policy is put on.
    """
    if may is None:
        return
    asks = calls(kind, stack, place, doing, name, properties, tags, boundary)
    refusal = next(filter(None, (may(one.action, one.resource, one.keys) for one in asks)), "")
    if refusal:
        raise ResourceFailed(f"{refusal} (Service: CloudFormation, Status Code: 403)")


def calls(
    kind: str,
    stack: str,
    place: str,
    doing: str,
    name: str = "",
    properties: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
    boundary: str = "",
) -> Iterator[Ask]:
    """Yield the calls that create, update or delete a resource of this type, each with its ARN and condition keys.

    One without a name gets one of those that CloudFormation makes.
    """
    given = properties or {}
    tagged = {f"aws:resourcetag/{key.lower()}": [value] for key, value in (tags or {}).items()}
    subnet = _subnet_arn(str(given.get("SubnetId", "")), *place.split(":"))
    named = name or f"{stack}-{kind.rpartition(':')[2]}-0123456789AB"
    values = {
        "name": named,
        "stack": stack,
        "role": str(given.get("Role", "")).partition(":role/")[2] or named,
        "bucket": str(given.get("DataRepositoryPath", "")).removeprefix("s3://").partition("/")[0] or "bucket",
    }
    for action in actions(kind, doing, given):
        if action.startswith(_OF_KEYS) and action not in _table()["without_resource"]:
            yield from _of_key(kind, action, given, *place.split(":"))
            continue
        about = _OTHERS.get((kind, action)) or _TARGETS.get(action) or _RESOURCES[kind]
        for resource in about.split():
            arn = _arn(action, resource.format(**values), *place.split(":"))
            for more in _of_role(kind, action, given, boundary):
                yield Ask(action, arn, {"ec2:subnet": [subnet]} if action == OF_EFS else {**tagged, **more})


def _of_key(kind: str, action: str, given: Mapping[str, Any], region: str, account: str) -> Iterator[Ask]:
    """Yield a use of the keys that a resource is encrypted with, through its service (docs/aws-behaviour.md 6.7)."""
    for key in keys.named(kind, given):
        service = kind.split("::")[1].lower()
        used = keys.via(_SERVICES.get(service, service), region)
        granted = {"kms:grantisforawsresource": ["true"]} if action.endswith("Grant") else {}
        yield Ask(action, keys.arn_of(account, region, key), {**used, **granted})


def _of_role(kind: str, action: str, properties: Mapping[str, Any], boundary: str) -> Iterator[Mapping[str, list[str]]]:
    """Yield the condition keys of IAM for one call or more (docs/aws-behaviour.md 6.5)."""
    if action == "iam:PassRole":
        yield from ({"iam:passedtoservice": [f"{one}.amazonaws.com"]} for one in _PASSED_TO.get(kind, ("",)))
        return
    bound = properties.get("PermissionsBoundary") or boundary
    keys = {"iam:permissionsboundary": [bound]} if bound and action in BOUNDED else {}
    attached = properties.get("ManagedPolicyArns", ()) if action in _ATTACHING else ()
    yield from ({**keys, "iam:policyarn": [arn]} for arn in attached)
    if not attached:
        yield keys


def actions(kind: str, doing: str, properties: Mapping[str, Any]) -> list[str]:
    """Return the actions that create, update or delete a resource of this type with these properties."""
    handlers, only_with, not_with = (_table()[which].get(kind, {}) for which in ("types", "only_with", "not_with"))
    given = {*_keys(properties)}
    found = {action for one in _HANDLERS[doing] for action in handlers.get(one, ())}
    found -= {one for one, names in not_with.items() if given.intersection(names)}
    return sorted(one for one in found if one not in only_with or given.intersection(only_with[one]))


def _keys(value: Any) -> Iterator[str]:
    """Yield the keys of mappings, at any depth."""
    if isinstance(value, Mapping):
        yield from value
    for one in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _keys(one)


@functools.cache
def _table() -> Mapping[str, Any]:
    return json.loads(Path(__file__).with_suffix(".json").read_bytes())


def _arn(action: str, resource: str, region: str, account: str) -> str:
    if action in _table()["without_resource"]:
        return "*"
    service = action.partition(":")[0]
    owner = "" if f"{service}:{resource}".startswith(_WITHOUT_ACCOUNT) else account
    place = _PLACES.get(service, "{region}:{account}").format(region=region, account=owner)
    return f"{partitions.arn()}:{service}:{place}:{resource}"


def _subnet_arn(subnet_id: str, region: str, account: str) -> str:
    """Return the ARN of a subnet, which names the account that owns it (docs/aws-behaviour.md 2.65)."""
    return f"{partitions.arn()}:ec2:{region}:{OWNER if subnet_id in SUBNETS else account}:subnet/{subnet_id}"


def names_of(kind: str, physical_id: str, properties: Mapping[str, Any]) -> list[str]:
    """Return the names of what the calls for this one are about, as in ARNs; "" for one without a name."""
    if _OWN_NAMES.get(kind) in properties:
        return [properties[_OWN_NAMES[kind]]]
    if kind.startswith("AWS::ImageBuilder::") and physical_id:
        return [physical_id.split("/")[1]]
    given = properties.get(_ABOUT[kind], "") if kind in _ABOUT else physical_id
    names = [str(one).rpartition("/")[2].rpartition(":")[2] for one in (given if isinstance(given, list) else [given])]
    return [f"{properties.get('Path', '/')[1:]}{one}" if kind == "AWS::IAM::Role" and one else one for one in names]


def types() -> Iterable[str]:
    """Return the types with a row."""
    return _table()["types"]
