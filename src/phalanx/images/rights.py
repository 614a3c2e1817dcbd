"""The least IAM policy for a person who runs `image build`, `list`, `show` and `rm`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from phalanx.images.image_stack import STACKS
from phalanx.template import permissions
from phalanx.template import policy as clusters

_ANY_IMAGE = f"{STACKS}*"
# The second half proves that nothing is left, as `down` does.
_OWN = """
    cloudformation:CreateStack cloudformation:DeleteStack cloudformation:DescribeStackEvents
    cloudformation:ListStackResources cloudformation:TagResource ec2:CreateTags ec2:DescribeAvailabilityZones
    ec2:DescribeImages ec2:DescribeInstanceTypeOfferings
    logs:DeleteLogGroup logs:DescribeLogGroups logs:FilterLogEvents

    autoscaling:DescribeAutoScalingGroups dynamodb:ListTables ec2:DescribeAddresses ec2:DescribeInstances
    ec2:DescribeInternetGateways ec2:DescribeLaunchTemplates ec2:DescribeNatGateways ec2:DescribeNetworkInterfaces
    ec2:DescribePlacementGroups ec2:DescribeRouteTables ec2:DescribeSecurityGroups ec2:DescribeSubnets
    ec2:DescribeVolumes ec2:DescribeVpcEndpoints ec2:DescribeVpcs events:ListRules fsx:DescribeFileSystems
    iam:GetInstanceProfile iam:GetRole iam:ListRoles lambda:ListFunctions sns:ListTopics sqs:ListQueues
"""
# What looks at the network and the boundary that a cluster's file names.
_OF_FILE = """
    ec2:DescribeNetworkAcls ec2:DescribeVpcAttribute ec2:DescribeVpcBlockPublicAccessExclusions
    ec2:DescribeVpcBlockPublicAccessOptions iam:GetPolicy
"""
# The names of Image Builder's resources, and of the log groups of builds (docs/aws-behaviour.md 9.10).
_NAMED: Mapping[str, tuple[str, ...]] = {
    **clusters.NAMED,
    # The deletion of an image is an execution whose id is the service's own.
    "imagebuilder": ("imagebuilder:*:*:*/{prefix}", "imagebuilder:*:*:lifecycle-execution/*"),
    "logs": ("logs:*:*:log-group:/aws/imagebuilder/{prefix}",),
}
_ALLOW = {"Effect": "Allow"}
_PARENTS = "arn:*:ssm:*::parameter/aws/service/*"
_SERVICE_ROLE = "arn:*:iam::*:role/aws-service-role/imagebuilder.amazonaws.com/*"
# What Image Builder gives to the images and snapshots that it makes (docs/aws-behaviour.md 9.13).
_REMOVALS = ["ec2:DeregisterImage", "ec2:DeleteSnapshot"]
_MADE = {"StringEquals": {"aws:ResourceTag/CreatedBy": "EC2 Image Builder"}}


def policy(document: Mapping[str, Any], of_file: bool = False, service_role: str | None = None) -> dict[str, Any]:
    """Return the policy for images of recipes; `document` is the stack of one, made as a cluster's file says or not.

    With a service role, CloudFormation makes and deletes the stack with that role's rights.
    """
    own = {*_OWN.split(), *(_OF_FILE.split() if of_file else ()), *clusters.LOOKS_AT_KEY}
    made = [clusters.pass_to_cloudformation(service_role)] if service_role else [*_of_stack()]
    actions = own if service_role else own | {*permissions.needed(document, changes=False)}
    return _with(
        *_of_document(document, actions),
        # A list of stacks is one of all stacks.
        {"Sid": "AllStacks", **_ALLOW, "Action": ["cloudformation:DescribeStacks"], "Resource": "*"},
        {"Sid": "OwnImages", **_ALLOW, "Action": _REMOVALS, "Resource": "arn:*:ec2:*::*", "Condition": _MADE},
        *made,
    )


def of_service_role(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the trust and the policy of a role with which CloudFormation makes and deletes images."""
    actions = {*permissions.needed(document, changes=False)}
    return clusters.as_service_role(_with(*_of_document(document, actions), *_of_stack()))


def _with(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": [*statements]}


def _of_document(document: Mapping[str, Any], actions: Collection[str]) -> Iterator[dict[str, Any]]:
    yield from clusters.statements(actions, _ANY_IMAGE, _NAMED, launched=["image"])
    yield from clusters.of_roles(document, actions, _ANY_IMAGE)
    yield from clusters.of_key(document, actions)


def _of_stack() -> Iterator[dict[str, Any]]:
    """Allow what CloudFormation does beside the stack's own resources."""
    own_role = {"Action": ["iam:CreateServiceLinkedRole", "iam:GetRole"], "Resource": _SERVICE_ROLE}
    yield {"Sid": "ParentImages", **_ALLOW, "Action": ["ssm:GetParameter"], "Resource": [_PARENTS]}
    yield {"Sid": "RoleOfImageBuilder", **_ALLOW, **own_role}
