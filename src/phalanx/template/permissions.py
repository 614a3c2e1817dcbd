"""The calls to AWS of `up`, `status`, `scale`, `extend`, `why` and `down`, for which whoever runs them needs rights.

CloudFormation makes and changes a stack's resources with the caller's rights. Which calls a type needs is in a table,
which scripts/rights makes from AWS's resource schemas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from phalanx.data import table

_HANDLERS = ("create", "read", "delete", "list")

_OWN = """
    autoscaling:CreateOrUpdateTags autoscaling:DescribeAutoScalingGroups autoscaling:DescribeScalingActivities
    autoscaling:DescribeScheduledActions autoscaling:PutScheduledUpdateGroupAction
    autoscaling:UpdateAutoScalingGroup cloudformation:CreateChangeSet cloudformation:CreateStack
    cloudformation:DeleteChangeSet cloudformation:DeleteStack cloudformation:DescribeChangeSet
    cloudformation:DescribeEvents cloudformation:ExecuteChangeSet cloudformation:DescribeStackEvents
    cloudformation:DescribeStacks
    cloudformation:ListStackResources cloudformation:TagResource dynamodb:DescribeTable dynamodb:GetItem
    dynamodb:ListTables dynamodb:PutItem ec2:AuthorizeSecurityGroupIngress ec2:DeleteSecurityGroup
    ec2:DeleteVpcEndpoints ec2:DescribeAddresses ec2:DescribeAvailabilityZones ec2:DescribeCapacityReservations
    ec2:DescribeImages ec2:DescribeInstanceTypeOfferings ec2:DescribeInstanceTypes ec2:DescribeInstances
    ec2:DescribeInternetGateways ec2:DescribeKeyPairs ec2:DescribeLaunchTemplateVersions ec2:DescribeLaunchTemplates
    ec2:DescribeNatGateways ec2:DescribeNetworkAcls ec2:DescribeNetworkInterfaces ec2:DescribePlacementGroups
    ec2:DescribeRouteTables ec2:DescribeSecurityGroups ec2:DescribeSubnets ec2:DescribeVolumes
    ec2:DescribeVpcAttribute ec2:DescribeVpcEndpoints ec2:DescribeVpcs
    elasticfilesystem:DeleteFileSystem
    elasticfilesystem:DescribeFileSystems elasticfilesystem:DescribeMountTargets
    elasticfilesystem:DescribeMountTargetSecurityGroups iam:DeleteRole iam:DeleteRolePolicy iam:DetachRolePolicy
    iam:GetInstanceProfile iam:GetPolicy iam:GetRole iam:ListAttachedRolePolicies iam:ListRolePolicies iam:ListRoles
    iam:ListRoleTags lambda:GetFunction lambda:ListFunctions lambda:ListTags logs:DeleteLogGroup
    logs:DescribeLogGroups logs:DescribeLogStreams logs:GetLogEvents servicequotas:GetAWSDefaultServiceQuota
    servicequotas:GetServiceQuota s3:ListBucket sns:GetTopicAttributes sns:ListTopics sqs:GetQueueAttributes
    sqs:ListQueues sqs:SendMessage ssm:GetParameter ssm:GetParameters
    autoscaling:DeleteScheduledAction autoscaling:DescribeTags
    ec2:DescribeTags cloudformation:ListChangeSets events:ListRules events:ListTagsForResource
    fsx:DescribeFileSystems
"""

OWN = tuple(_OWN.split())
"""The calls that phalanx makes itself."""
OPTIONAL = (
    *("cloudformation:ListStacks", "ec2:DescribeRegions", "ec2:DescribeSpotPriceHistory"),
    *("ec2:DescribeVpcBlockPublicAccessExclusions", "ec2:DescribeVpcBlockPublicAccessOptions"),
    *("ec2:GetAllowedImagesSettings", "ec2:GetEbsDefaultKmsKeyId", "ec2:GetEbsEncryptionByDefault"),
    *("ec2:GetInstanceMetadataDefaults", "iam:SimulatePrincipalPolicy", "pricing:GetProducts", "tag:GetResources"),
)
"""Those without which it does not find what a killed `plan --on-aws` left, uses the table's prices, does not know the
account's settings, leaves rights unchecked, and asks each service instead of the index.
"""
OF_DOCTOR = ("ec2:CreateVpc", "iam:GetUser")
"""What `doctor` tries as well, the first as a dry run; where it is refused, the answer is unknown."""
OWN_OF_EMR = (
    *(
        "elasticmapreduce:DescribeCluster",
        "elasticmapreduce:DescribeReleaseLabel",
        "elasticmapreduce:ListClusters",
        "elasticmapreduce:ListInstanceGroups",
        "elasticmapreduce:ModifyInstanceGroups",
    ),
    *("elasticmapreduce:ListInstances", "elasticmapreduce:ListReleaseLabels"),
    *("elasticmapreduce:ListSupportedInstanceTypes", "s3:PutObject", "s3:ListBucket", "iam:GetRole"),
)
"""Those that it makes for a cluster of EMR, too."""
OWN_OF = {
    "AWS::EMR::Cluster": OWN_OF_EMR,
    "AWS::Events::Rule": ("events:DescribeRule",),
    "AWS::FSx::FileSystem": ("fsx:DeleteFileSystem",),
}
"""Those that it makes for a stack with a resource of this type, too."""
OWN_OF_PRIVATE = ("ec2:DescribeVpcEndpointServices",)
"""And for a cluster without public addresses."""
OWN_OF_BUCKET = (
    *("s3:GetAccountPublicAccessBlock", "s3:GetBucketPolicyStatus", "s3:GetBucketPublicAccessBlock"),
    *("s3:GetEncryptionConfiguration", "s3:ListBucket"),
)
"""Those that look at the bucket of `bucket`."""
OWN_OF_SENT = ("cloudformation:GetTemplate",)
"""Those that compare what CloudFormation has read there."""
OF_DOCUMENTS = ("s3:DeleteObject", "s3:GetObject", "s3:PutObject")
"""Those on documents in it, of which CloudFormation makes GetObject."""


def needed(document: Mapping[str, Any], changes: bool = True) -> Iterator[str]:
    """Yield the actions with which CloudFormation makes, deletes and (with `changes`) changes the resources."""
    for resource in document["Resources"].values():
        for handler in (*_HANDLERS, "update") if changes else _HANDLERS:
            yield from of_handler(resource, handler)


def of_handler(resource: Mapping[str, Any], handler: str) -> Iterator[str]:
    """Yield the actions of a handler of the resource's type. Raises KeyError for an unknown type."""
    kind = resource["Type"]
    only_with, not_with = (table("rights")[which].get(kind, {}) for which in ("only_with", "not_with"))
    actions = table("rights")["types"][kind].get(handler, ())
    named = {*_keys(resource)} if {*only_with, *not_with}.intersection(actions) else set()
    for action in actions:
        if (action not in only_with or named.intersection(only_with[action])) and named.isdisjoint(
            not_with.get(action, ())
        ):
            yield action


def _keys(value: Any) -> Iterator[str]:
    """Yield the keys of mappings, at any depth."""
    if isinstance(value, Mapping):
        yield from value
    for one in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _keys(one)


def takes_no_resource(action: str) -> bool:
    """Whether IAM judges an action of a handler without a resource."""
    return action in table("rights")["without_resource"]
