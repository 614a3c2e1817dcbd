"""The least IAM policy for a person who runs phalanx: which resources each call is allowed on.

Nothing is allowed on all resources that IAM judges on single ones (docs/aws-behaviour.md 6.2).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from phalanx.spec.own_tags import CLUSTER_TAG
from phalanx.template import encryption
from phalanx.template.access import CLOUDFORMATION, trust
from phalanx.template.permissions import (
    OF_DOCUMENTS,
    OPTIONAL,
    OWN,
    OWN_OF,
    OWN_OF_BUCKET,
    OWN_OF_PRIVATE,
    OWN_OF_SENT,
    needed,
    takes_no_resource,
)

# CloudFormation shortens a stack's name in longer names, but never this much (docs/aws-behaviour.md 3.30).
_PREFIX = 20
# Type → the service that makes a role of its own with its caller's rights, once in an account (aws-behaviour 6.3).
_SERVICES_WITH_ROLES = {
    "AWS::AutoScaling::AutoScalingGroup": "autoscaling",
    "AWS::EFS::MountTarget": "elasticfilesystem",
    "AWS::EMR::Cluster": "elasticmapreduce",
}
_LUSTRE_TYPES = frozenset({"AWS::FSx::DataRepositoryAssociation", "AWS::FSx::FileSystem"})
# What phalanx itself calls and takes no resource, or none that is known before (docs/aws-behaviour.md 6.2).
_OF_KEYS = "kms:"
LOOKS_AT_KEY = ("kms:DescribeKey", "kms:GetKeyPolicy", "kms:ListGrants")
# With the key, phalanx itself stores and reads through the services.
_OWN_OF_KEY = (*LOOKS_AT_KEY, "kms:Decrypt", "kms:GenerateDataKey")
_ANYWHERE = frozenset(
    {
        *("elasticmapreduce:DescribeReleaseLabel", "elasticmapreduce:ListClusters"),
        *("elasticmapreduce:ListReleaseLabels", "elasticmapreduce:ListSupportedInstanceTypes", "pricing:GetProducts"),
        *("cloudformation:ListStacks", "ec2:GetAllowedImagesSettings", "ec2:GetEbsDefaultKmsKeyId"),
        *("ec2:GetEbsEncryptionByDefault", "ec2:GetInstanceMetadataDefaults"),
        *("servicequotas:GetAWSDefaultServiceQuota", "tag:GetResources"),
    }
)
_DESCRIPTIONS = ("autoscaling:Describe", "ec2:Describe")
# Of the service behind logins to a head without a public address.
_SESSIONS = "ssmmessages:"
# What removes or takes apart is bound to the cluster's tag.
_REMOVALS = (
    *("ec2:Delete", "ec2:Detach", "ec2:Disassociate", "ec2:Release", "ec2:Revoke", "elasticfilesystem:Delete"),
    *("elasticmapreduce:Terminate", "fsx:Delete"),
)
# A network interface of EFS has no tags of the cluster's.
_UNTAGGED = "ec2:DeleteNetworkInterface"
# Actions that make and change, and the types of resources that they take: what has another cluster's tag is refused.
TYPES: Mapping[str, str] = {
    "ec2:AllocateAddress": "elastic-ip",
    "ec2:AssociateRouteTable": "route-table subnet",
    "ec2:AttachInternetGateway": "internet-gateway vpc",
    "ec2:AuthorizeSecurityGroupEgress": "security-group",
    "ec2:AuthorizeSecurityGroupIngress": "security-group",
    "ec2:CreateInternetGateway": "internet-gateway",
    "ec2:CreateLaunchTemplate": "launch-template",
    "ec2:CreateLaunchTemplateVersion": "launch-template",
    "ec2:CreateNatGateway": "elastic-ip natgateway subnet",
    "ec2:CreateNetworkInterface": "network-interface security-group subnet",
    "ec2:CreatePlacementGroup": "placement-group",
    "ec2:CreateRoute": "route-table",
    "ec2:CreateRouteTable": "route-table vpc",
    "ec2:CreateSecurityGroup": "security-group vpc",
    "ec2:CreateSubnet": "subnet vpc",
    "ec2:CreateTags": "",  # All of the others.
    "ec2:CreateVpc": "vpc",
    "ec2:CreateVpcEndpoint": "route-table security-group subnet vpc vpc-endpoint",
    _UNTAGGED: "network-interface",
    "ec2:DescribeVpcAttribute": "vpc",
    "ec2:ModifySubnetAttribute": "subnet",
    "ec2:ModifyVpcEndpoint": "route-table security-group subnet vpc-endpoint",
    "ec2:ModifyVpcAttribute": "vpc",
    "ec2:ReplaceRoute": "route-table",
    "ec2:ReplaceRouteTableAssociation": "route-table subnet",
    "ec2:RunInstances": "image instance launch-template network-interface security-group subnet volume",
    "ec2:UpdateSecurityGroupRuleDescriptionsEgress": "security-group",
    "ec2:UpdateSecurityGroupRuleDescriptionsIngress": "security-group",
    **dict.fromkeys(
        (
            *("elasticfilesystem:DescribeBackupPolicy", "elasticfilesystem:DescribeFileSystemPolicy"),
            *("elasticfilesystem:DescribeLifecycleConfiguration", "elasticfilesystem:ListTagsForResource"),
            *("elasticfilesystem:DescribeReplicationConfigurations", "elasticfilesystem:TagResource"),
            *("elasticfilesystem:ModifyMountTargetSecurityGroups", "elasticfilesystem:UntagResource"),
            *("elasticfilesystem:PutFileSystemPolicy", "elasticfilesystem:UpdateFileSystem"),
        ),
        "file-system",
    ),
    **dict.fromkeys(
        (
            *("elasticmapreduce:AddTags", "elasticmapreduce:DescribeCluster", "elasticmapreduce:ListInstanceGroups"),
            *("elasticmapreduce:ListInstances", "elasticmapreduce:ModifyInstanceGroups"),
        ),
        "cluster",
    ),
    "fsx:CreateDataRepositoryAssociation": "association file-system",
    "fsx:CreateFileSystem": "file-system",
    **dict.fromkeys(("fsx:TagResource", "fsx:UntagResource"), "association file-system"),
    "fsx:UpdateDataRepositoryAssociation": "association",
    "fsx:UpdateFileSystem": "file-system",
}
_OWNERS = {"image": ""}
# What a stack does in the VPC that a user names, and the parameters that name it: it may be another cluster's.
_INSIDE = frozenset(
    {
        *("ec2:CreateNetworkInterface", "ec2:CreateSecurityGroup", "ec2:CreateVpcEndpoint"),
        *("ec2:DescribeVpcAttribute", "ec2:RunInstances"),
    }
)
# The services that use the key of a stack in the name of whoever makes it or calls them.
_STORING = ("dynamodb", "elasticfilesystem", "fsx", "imagebuilder", "lambda", "sqs")
_NETWORK = {"Vpc": "vpc", **dict.fromkeys(("PublicSubnet", "HeadSubnet", "PrivateSubnet"), "subnet")}
# Actions about what a user names: a file system of another cluster, too.
_USED = {
    **dict.fromkeys(
        (
            *("elasticfilesystem:CreateMountTarget", "elasticfilesystem:DescribeFileSystems"),
            *("elasticfilesystem:DescribeMountTargetSecurityGroups", "elasticfilesystem:DescribeMountTargets"),
        ),
        "elasticfilesystem:*:*:file-system/*",
    ),
    "iam:GetPolicy": "iam::*:policy/*",
    # One's own policies. No variable has a role's name: a role is to be named by whoever attaches the policy.
    "iam:SimulatePrincipalPolicy": "iam::*:user/${aws:username}",
    "route53:AssociateVPCWithHostedZone": "route53:::hostedzone/*",
    "servicequotas:GetServiceQuota": "servicequotas:*:*:*/L-*",
}
NAMED: Mapping[str, tuple[str, ...]] = {
    "autoscaling": ("autoscaling:*:*:autoScalingGroup:*:autoScalingGroupName/{name}-*",),
    "cloudformation": ("cloudformation:*:*:stack/{name}/*",),
    "dynamodb": ("dynamodb:*:*:table/{prefix}*",),
    "events": ("events:*:*:rule/{prefix}*",),
    # The role that removes a forgotten cluster has its region in its path.
    "iam": ("iam::*:role/{prefix}*", "iam::*:role/phalanx/*/{prefix}*", "iam::*:instance-profile/{prefix}*"),
    "lambda": ("lambda:*:*:function:{prefix}*",),
    "logs": ("logs:*:*:log-group:{prefix}*",),
    "sns": ("sns:*:*:{prefix}*",),
    "sqs": ("sqs:*:*:{prefix}*",),
}
_OF_BUCKETS = ("s3:ListBucket", "s3:PutObject")
_BY_CLOUDFORMATION = "ssm:GetParameters"
_OF_PARAMETERS = ("ssm:GetParameter", _BY_CLOUDFORMATION)
# About roles of services and buckets with links, which have statements of their own.
_OF_SERVICES = ("iam:CreateServiceLinkedRole", "s3:GetBucketPolicy", "s3:PutBucketPolicy")
# What can be allowed for roles with a certain permissions boundary only (docs/aws-behaviour.md 6.5).
_BOUNDED = ("CreateRole", "DeleteRolePolicy", "DetachRolePolicy", "PutRolePermissionsBoundary", "PutRolePolicy")
_OF_ROLES = frozenset(f"iam:{one}" for one in ("AttachRolePolicy", "PassRole", *_BOUNDED))
# What nodes of EMR start with, as the document names it.
_AGENT = r"s3://([^\"]*phalanx)/agent-"
MOST = 6144
"""The characters that IAM allows in a managed policy, without white space."""


def policy(
    document: Mapping[str, Any], cluster: str, bucket: str | None = None, service_role: str | None = None
) -> dict[str, Any]:
    """Return the policy for clusters of this name that the document describes. Raises KeyError for an unknown type.

    With a bucket, the document may go through it. With a service role, CloudFormation acts with that role's rights, and
    what is left is what phalanx itself calls, and to pass the role.
    """
    kinds = {resource["Type"] for resource in document["Resources"].values()}
    is_private = _SESSIONS in str(document["Resources"])
    more = [own for kind, own in OWN_OF.items() if kind in kinds] + [OWN_OF_PRIVATE] * is_private
    more += [_OWN_OF_KEY] if encryption.KEY in document.get("Parameters", ()) else []
    own = {*OWN, *OPTIONAL, *chain(*more)}
    if service_role:
        actions, found = own - {_BY_CLOUDFORMATION}, [pass_to_cloudformation(service_role)]
    else:
        actions, found = own | {*needed(document)}, [*_of_stack(document, kinds)]
    return {
        "Version": "2012-10-17",
        "Statement": [
            *_of_document(document, actions, cluster),
            *_of_documents(bucket, cluster),
            *(_logins(cluster) if is_private else []),
            *found,
            _guard_duty(),
        ],
    }


def of_service_role(document: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """Return the trust and the policy of a role with which CloudFormation makes, changes and deletes such clusters."""
    kinds = {resource["Type"] for resource in document["Resources"].values()}
    actions = {*needed(document), _BY_CLOUDFORMATION}
    statements = [*_of_document(document, actions, cluster), *_of_stack(document, kinds)]
    return as_service_role({"Version": "2012-10-17", "Statement": statements})


def as_service_role(rights: Mapping[str, Any]) -> dict[str, Any]:
    """Return a service role of CloudFormation's with these rights, as IAM's API names its parts."""
    return {"AssumeRolePolicyDocument": trust({"Service": CLOUDFORMATION}), "PolicyDocument": rights}


def pass_to_cloudformation(role: str) -> dict[str, Any]:
    """Allow to have CloudFormation act with a role's rights: whoever may do that owns what the role may do."""
    only = {"StringEquals": {"iam:PassedToService": CLOUDFORMATION}}
    made = {"Sid": "PassServiceRole", "Effect": "Allow", "Action": ["iam:PassRole"], "Resource": [role]}
    return {**made, "Condition": only}


def _of_document(document: Mapping[str, Any], actions: Collection[str], cluster: str) -> Iterator[dict[str, Any]]:
    """Allow these actions on what the document describes and names."""
    yield from statements(actions, cluster, launched=_launched(document))
    yield from of_roles(document, actions, cluster)
    yield from _of_buckets(document, actions)
    yield from _of_parameters(document, actions)
    yield from _of_their_network(document, actions)
    yield from of_key(document, actions)


def _of_stack(document: Mapping[str, Any], kinds: Collection[str]) -> Iterator[dict[str, Any]]:
    """Allow what CloudFormation does beside the handlers' calls on the stack's own resources."""
    yield from _of_their_storage(document)
    yield from _of_service_roles(document, kinds)
    yield from _of_lustre(document)


def statements(
    actions: Iterable[str],
    cluster: str,
    named: Mapping[str, tuple[str, ...]] = NAMED,
    launched: Iterable[str] = (),
) -> list[dict[str, Any]]:
    """Return statements that allow these actions on what belongs to the cluster, as far as IAM can bind them to it.

    Parameters, buckets and roles have statements of their own. `launched` are further types of EC2 that are used.
    """
    wanted = {one for one in actions if not one.startswith(_OF_KEYS) or takes_no_resource(one)}
    wanted -= {*_OF_BUCKETS, *_OF_PARAMETERS, *_OF_SERVICES, *_OF_ROLES}
    used, made = wanted & {*_USED}, wanted & {*TYPES}
    anywhere = {one for one in wanted - made if one in _ANYWHERE or _is_without_resource(one)}
    removals = {one for one in wanted - made if one.startswith(_REMOVALS)}
    owned = wanted - used - made - anywhere - removals
    found = [
        _allow("Anywhere", anywhere, ["*"]),
        _allow("Own", owned, _arns_of_names(owned, cluster, named)),
        _tagged("TaggedOnly", removals, _services(removals), "StringLike", cluster),
        _tagged("NotOfOthers", made, _arns_of_types(made, launched), "StringLikeIfExists", cluster),
        _allow("Used", used, {_USED[one] for one in used}),
    ]
    return [one for one in found if one["Action"]]


def of_roles(document: Mapping[str, Any], actions: Iterable[str], cluster: str) -> Iterator[dict[str, Any]]:
    """Allow to make the document's roles, with its boundary if it has one, and to pass them to what assumes them.

    Without these conditions the holder could make a role without the boundary, or pass one to any service.
    """
    wanted = _OF_ROLES.intersection(actions)
    where = sorted(f"arn:*:{one.format(prefix=cluster[:_PREFIX])}" for one in NAMED["iam"] if ":role/" in one)
    roles = [one["Properties"] for one in document["Resources"].values() if one["Type"] == "AWS::IAM::Role"]
    attached = {arn.replace("${AWS::Partition}", "*") for one in roles for arn in _texts(one.get("ManagedPolicyArns"))}
    boundary = document.get("Parameters", {}).get("Boundary", {}).get("Default")
    bound = {"ArnEquals": {"iam:PermissionsBoundary": boundary}} if boundary else {}
    trusted = {one for role in roles for one in _texts(role["AssumeRolePolicyDocument"]) if ".amazonaws.com" in one}
    for sid, chosen, condition in (
        ("Roles", wanted - {"iam:AttachRolePolicy", "iam:PassRole"}, bound),
        (
            "PoliciesOfRoles",
            wanted & {"iam:AttachRolePolicy"} if attached else frozenset[str](),
            {**bound, "ArnLike": {"iam:PolicyARN": sorted(attached)}},
        ),
        ("PassRoles", wanted & {"iam:PassRole"}, {"StringEquals": {"iam:PassedToService": sorted(trusted)}}),
    ):
        if chosen:
            made = {"Sid": sid, "Effect": "Allow", "Action": sorted(chosen), "Resource": where}
            yield {**made, "Condition": condition} if condition else made


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts of a part of a document, at any depth."""
    if isinstance(value, str):
        yield value
    for one in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _texts(one)


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a part of a document with their values, at any depth."""
    if isinstance(value, Mapping):
        yield from value.items()
    for one in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _pairs(one)


def _is_without_resource(action: str) -> bool:
    return takes_no_resource(action) or action.startswith(_DESCRIPTIONS)


def parts(whole: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a policy in as few parts as fit into managed policies, of which a role may have ten."""
    made: list[dict[str, Any]] = []
    for statement in whole["Statement"]:
        longer = {**whole, "Statement": [*(made[-1]["Statement"] if made else ()), statement]}
        if made and length(longer) <= MOST:
            made[-1] = longer
        else:
            made.append({**whole, "Statement": [statement]})
    return made


def length(made: Mapping[str, Any]) -> int:
    """Return the characters that IAM counts."""
    return len(json.dumps(made, separators=(",", ":")))


def _allow(sid: str, actions: Iterable[str], arns: Iterable[str]) -> dict[str, Any]:
    resources = sorted(one if one == "*" else f"arn:*:{one}" for one in arns)
    return {"Sid": sid, "Effect": "Allow", "Action": sorted(actions), "Resource": resources}


def _tagged(sid: str, actions: Iterable[str], arns: Iterable[str], operator: str, cluster: str) -> dict[str, Any]:
    condition = {operator: {f"aws:ResourceTag/{CLUSTER_TAG}": cluster}}
    return {**_allow(sid, actions, arns), "Condition": condition}


def _arns_of_names(actions: Iterable[str], cluster: str, named: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    for service in {action.partition(":")[0] for action in actions}:
        for arn in named[service]:
            yield arn.format(name=cluster, prefix=cluster[:_PREFIX])


def _services(actions: Iterable[str]) -> set[str]:
    return {f"{action.partition(':')[0]}:*:*:*" for action in actions}


def _arns_of_types(actions: Iterable[str], launched: Iterable[str]) -> set[str]:
    found = {(one.partition(":")[0], kind) for one in actions for kind in TYPES[one].split()}
    found |= {("ec2", kind) for kind in launched}
    return {f"{service}:*:{_OWNERS.get(kind, '*')}:{kind}/*" for service, kind in found}


def _launched(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what this document's launch templates name beside what all do."""
    found = str(document["Resources"])
    if document.get("Parameters", {}).get("KeyPair", {}).get("Default"):
        yield "key-pair"
    if "'Placement'" in found:
        yield "placement-group"
    if "'CapacityReservationId" in found:
        yield "capacity-reservation"


def _of_buckets(document: Mapping[str, Any], actions: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Allow to look at the buckets that the document names, and to upload what nodes of EMR start with."""
    found = json.dumps(document)
    buckets = {f"s3:::{one}" for one in re.findall(r"s3:(?://|::)([a-z0-9][a-z0-9.-]+)", found)}
    if buckets:
        yield _allow("Buckets", ["s3:ListBucket"], buckets)
    if "s3:PutObject" in actions:
        yield _allow("Agent", ["s3:PutObject"], {f"s3:::{one}/*" for one in re.findall(_AGENT, found)})


def _of_documents(bucket: str | None, cluster: str) -> Iterator[dict[str, Any]]:
    """Allow to look at the bucket for documents, to put, have read, compare and delete them."""
    if bucket:
        yield _allow("Documents", OF_DOCUMENTS, {f"s3:::{bucket}/phalanx/{cluster}-*"})
        of_account = {one for one in OWN_OF_BUCKET if "Account" in one}
        yield _allow("DocumentBucket", {*OWN_OF_BUCKET} - of_account, {f"s3:::{bucket}"})
        yield _allow("DocumentBucketOfAccount", of_account, ["*"])
        yield _allow("DocumentsAsRead", OWN_OF_SENT, _arns_of_names(OWN_OF_SENT, cluster, NAMED))


def of_key(document: Mapping[str, Any], actions: Collection[str]) -> Iterator[dict[str, Any]]:
    """Allow to use the key that the document names: through the services that store with it, and for their grants."""
    key = document.get("Parameters", {}).get(encryption.KEY, {}).get("Default")
    wanted = {one for one in actions if one.startswith(_OF_KEYS) and not takes_no_resource(one)} if key else set[str]()
    looks = wanted.intersection(LOOKS_AT_KEY)
    grants = {one for one in wanted - looks if one.endswith("Grant")}
    where, _, alias = str(key).partition(":alias/")
    # IAM matches a key by its own ARN only.
    behind = {"ForAnyValue:StringEquals": {"kms:ResourceAliases": f"alias/{alias}"}} if alias else {}
    through = {"StringLike": {"kms:ViaService": [f"{one}.*" for one in _STORING]}, **behind}
    for sid, chosen, condition in (
        ("LookAtKey", looks, behind),
        ("KeyThroughServices", wanted - looks - grants, through),
        ("GrantsOfServices", grants, {**through, "Bool": {"kms:GrantIsForAWSResource": "true"}}),
    ):
        if chosen:
            made = {
                "Sid": sid,
                "Effect": "Allow",
                "Action": sorted(chosen),
                "Resource": [f"{where}:key/*" if alias else key],
            }
            yield {**made, "Condition": condition} if condition else made


def _of_their_network(document: Mapping[str, Any], actions: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Allow to use the subnets and route tables that the document names."""
    given = document.get("Parameters", {})
    where = {f"ec2:*:*:{kind}/{given[name].get('Default', '*')}" for name, kind in _NETWORK.items() if name in given}
    properties = (one.get("Properties", {}) for one in document["Resources"].values())
    tables = (table for made in properties for table in made.get("RouteTableIds", ()))
    where |= {f"ec2:*:*:route-table/{table}" for table in tables if isinstance(table, str)}
    if where:
        yield _allow("TheirNetwork", _INSIDE.intersection(actions), where)


def _of_their_storage(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Allow to take what the stack adds to a file system of the user's away again: it has no tag of the cluster's."""
    made = document["Resources"].values()
    file_system = document.get("Parameters", {}).get("FileSystemId", {}).get("Default")
    if file_system and any(one["Type"] == "AWS::EFS::MountTarget" for one in made):
        where = {f"elasticfilesystem:*:*:file-system/{file_system}"}
        changes = ["elasticfilesystem:DeleteMountTarget", "elasticfilesystem:ModifyMountTargetSecurityGroups"]
        yield _allow("TheirMountTarget", changes, where)
    rules = [one["Properties"] for one in made if one["Type"] == "AWS::EC2::SecurityGroupIngress"]
    groups = {f"ec2:*:*:security-group/{one['GroupId']}" for one in rules if isinstance(one["GroupId"], str)}
    if groups:
        changes = [
            *("ec2:AuthorizeSecurityGroupIngress", "ec2:RevokeSecurityGroupIngress"),
            "ec2:UpdateSecurityGroupRuleDescriptionsIngress",
        ]
        yield _allow("TheirGroup", changes, groups)


def _of_parameters(document: Mapping[str, Any], actions: Collection[str]) -> Iterator[dict[str, Any]]:
    """Allow to look up images: phalanx does, and so does CloudFormation (docs/aws-behaviour.md 1.47)."""
    wanted = set(_OF_PARAMETERS).intersection(actions)
    given = document.get("Parameters", {}).values()
    names = {one["Default"] for one in given if one["Type"].startswith("AWS::SSM::Parameter::Value")}
    if names:
        yield _allow("Images", wanted, map(_of_parameter, names))


def _of_parameter(name: str) -> str:
    """Return the ARN of a parameter; AWS's own belong to no account."""
    return "ssm:*::parameter/aws/service/*" if name.startswith("/aws/") else f"ssm:*:*:parameter/{name.lstrip('/')}"


def _logins(cluster: str) -> list[dict[str, Any]]:
    """Allow to log in to the head through Session Manager, and to use and end one's own logins (aws-behaviour 2.54)."""
    own = {"StringLike": {f"ssm:resourceTag/{CLUSTER_TAG}": [cluster]}}
    mine = [f"arn:*:ssm:*:*:session/${{aws:{who}}}-*" for who in ("username", "userid")]
    document = "arn:*:ssm:*:*:document/AWS-StartSSHSession"
    start = {"Effect": "Allow", "Action": ["ssm:StartSession"]}
    own_ones = ["ssm:TerminateSession", "ssmmessages:OpenDataChannel"]
    return [
        {"Sid": "Login", **start, "Resource": ["arn:*:ec2:*:*:instance/*"], "Condition": own},
        {"Sid": "LoginBySsh", **start, "Resource": [document]},
        {"Sid": "OwnLogins", "Effect": "Allow", "Action": own_ones, "Resource": mine},
    ]


def _of_service_roles(document: Mapping[str, Any], kinds: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Allow what the first cluster of an account needs: services make their own roles then, with its owner's rights."""
    services = [_SERVICES_WITH_ROLES[kind] for kind in kinds if kind in _SERVICES_WITH_ROLES]
    markets = {str(one).lower() for key, one in _pairs(document["Resources"]) if key in ("Market", "MarketType")}
    services += ["spot"] if "spot" in markets else []
    # In China, some services' names end in .cn.
    where = {f"iam::*:role/aws-service-role/{one}.amazonaws.com*/AWSServiceRoleFor*" for one in services}
    if where:
        yield _allow("RolesOfServices", ["iam:CreateServiceLinkedRole"], where)


def _of_lustre(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Allow what FSx does with its caller's rights: make its own roles, and read a linked bucket's policy (4.13)."""
    kinds = _LUSTRE_TYPES.intersection(one["Type"] for one in document["Resources"].values())
    if kinds:
        roles = ["iam:AttachRolePolicy", "iam:CreateServiceLinkedRole", "iam:PutRolePolicy"]
        where = "arn:*:iam::*:role/aws-service-role/*fsx.amazonaws.com/*"
        yield {"Sid": "RolesOfFsx", "Effect": "Allow", "Action": roles, "Resource": [where]}
    properties = (one.get("Properties", {}) for one in document["Resources"].values())
    urls = (one["DataRepositoryPath"] for one in properties if "DataRepositoryPath" in one)
    buckets = sorted({url.removeprefix("s3://").partition("/")[0] for url in urls})
    if buckets:
        actions = ["s3:GetBucketPolicy", "s3:ListBucket", "s3:PutBucketPolicy"]
        arns = [f"arn:*:s3:::{bucket}" for bucket in buckets]
        yield {"Sid": "LinkedBuckets", "Effect": "Allow", "Action": actions, "Resource": arns}


def _guard_duty() -> dict[str, Any]:
    """Allow to delete what GuardDuty made in the cluster's VPC, which keeps it (docs/aws-behaviour.md 11.14)."""
    made = {"Null": {"aws:ResourceTag/GuardDutyManaged": "false"}}
    actions = ["ec2:DeleteSecurityGroup", "ec2:DeleteVpcEndpoints"]
    return {
        "Sid": "GuardDuty",
        "Effect": "Allow",
        "Action": actions,
        "Resource": ["arn:*:ec2:*:*:*"],
        "Condition": made,
    }
