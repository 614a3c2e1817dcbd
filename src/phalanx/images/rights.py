"""The least IAM policy for a person who runs `image build`, `list`, `show` and `rm`."""

from __future__ import annotations

from collections.abc import Mapping
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
_PARENTS = "arn:*:ssm:*::parameter/aws/service/*"
_SERVICE_ROLE = "arn:*:iam::*:role/aws-service-role/imagebuilder.amazonaws.com/*"
# What Image Builder gives to the images and snapshots that it makes (docs/aws-behaviour.md 9.13).
_MADE = {"StringEquals": {"aws:ResourceTag/CreatedBy": "EC2 Image Builder"}}


def policy(document: Mapping[str, Any], of_file: bool = False) -> dict[str, Any]:
    """Return the policy for images of recipes; `document` is the stack of one, made as a cluster's file says or not."""
    actions = sorted(
        {*_OWN.split(), *(_OF_FILE.split() if of_file else ()), *permissions.needed(document, changes=False)}
    )
    allow = {"Effect": "Allow"}
    own_role = {"Action": ["iam:CreateServiceLinkedRole", "iam:GetRole"], "Resource": _SERVICE_ROLE}
    remove = {"Action": ["ec2:DeregisterImage", "ec2:DeleteSnapshot"], "Resource": "arn:*:ec2:*::*", "Condition": _MADE}
    statements = [
        *clusters.statements(actions, _ANY_IMAGE, _NAMED, launched=["image"]),
        *clusters.of_roles(document, actions, _ANY_IMAGE),
        # A list of stacks is one of all stacks.
        {"Sid": "AllStacks", **allow, "Action": ["cloudformation:DescribeStacks"], "Resource": "*"},
        {"Sid": "ParentImages", **allow, "Action": ["ssm:GetParameter"], "Resource": [_PARENTS]},
        {"Sid": "RoleOfImageBuilder", **allow, **own_role},
        {"Sid": "OwnImages", **allow, **remove},
    ]
    return {"Version": "2012-10-17", "Statement": statements}
