"""The calls to AWS of `up`, `status`, `scale`, `extend`, `why` and `down`, for which whoever runs them needs rights.

CloudFormation makes and changes a stack's resources with the caller's rights. Which calls a type needs follows the
permissions of the handlers in AWS's resource schemas, without those for properties that the template does not use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_OF_TYPES: Mapping[str, str] = {
    "AWS::AutoScaling::AutoScalingGroup": "autoscaling:CreateAutoScalingGroup autoscaling:UpdateAutoScalingGroup "
    "autoscaling:DeleteAutoScalingGroup autoscaling:CreateOrUpdateTags autoscaling:DescribeAutoScalingGroups "
    "autoscaling:DescribeScalingActivities autoscaling:PutNotificationConfiguration ec2:RunInstances iam:PassRole",
    "AWS::AutoScaling::ScheduledAction": "autoscaling:PutScheduledUpdateGroupAction autoscaling:DeleteScheduledAction "
    "autoscaling:DescribeScheduledActions",
    "AWS::CloudFormation::WaitCondition": "",
    "AWS::CloudFormation::WaitConditionHandle": "",
    "AWS::DynamoDB::Table": "dynamodb:CreateTable dynamodb:DescribeTable dynamodb:DeleteTable dynamodb:TagResource",
    "AWS::EC2::EIP": "ec2:AllocateAddress ec2:ReleaseAddress ec2:DescribeAddresses ec2:CreateTags",
    "AWS::EC2::InternetGateway": "ec2:CreateInternetGateway ec2:DeleteInternetGateway ec2:DescribeInternetGateways",
    "AWS::EC2::LaunchTemplate": "ec2:CreateLaunchTemplate ec2:DeleteLaunchTemplate ec2:DescribeLaunchTemplates",
    "AWS::EC2::NatGateway": "ec2:CreateNatGateway ec2:DeleteNatGateway ec2:DescribeNatGateways",
    "AWS::EC2::PlacementGroup": "ec2:CreatePlacementGroup ec2:DeletePlacementGroup ec2:DescribePlacementGroups",
    "AWS::EC2::Route": "ec2:CreateRoute ec2:DeleteRoute ec2:DescribeRouteTables",
    "AWS::EC2::RouteTable": "ec2:CreateRouteTable ec2:DeleteRouteTable",
    "AWS::EC2::SecurityGroup": "ec2:CreateSecurityGroup ec2:DeleteSecurityGroup ec2:DescribeSecurityGroups "
    "ec2:AuthorizeSecurityGroupIngress ec2:AuthorizeSecurityGroupEgress ec2:RevokeSecurityGroupEgress",
    "AWS::EC2::SecurityGroupEgress": "ec2:DescribeSecurityGroupRules",
    "AWS::EC2::SecurityGroupIngress": "ec2:RevokeSecurityGroupIngress ec2:DescribeSecurityGroupRules",
    "AWS::EC2::Subnet": "ec2:CreateSubnet ec2:DeleteSubnet ec2:DescribeSubnets ec2:ModifySubnetAttribute",
    "AWS::EC2::SubnetRouteTableAssociation": "ec2:AssociateRouteTable ec2:DisassociateRouteTable",
    "AWS::EC2::VPC": "ec2:CreateVpc ec2:DeleteVpc ec2:DescribeVpcs ec2:DescribeVpcAttribute ec2:ModifyVpcAttribute",
    "AWS::EC2::VPCEndpoint": "ec2:CreateVpcEndpoint ec2:DeleteVpcEndpoints ec2:DescribeVpcEndpoints",
    "AWS::EC2::VPCGatewayAttachment": "ec2:AttachInternetGateway ec2:DetachInternetGateway",
    "AWS::EFS::FileSystem": "elasticfilesystem:CreateFileSystem elasticfilesystem:DeleteFileSystem "
    "elasticfilesystem:DescribeFileSystems elasticfilesystem:TagResource",
    "AWS::EFS::MountTarget": "elasticfilesystem:CreateMountTarget elasticfilesystem:DeleteMountTarget "
    "elasticfilesystem:DescribeMountTargets ec2:CreateNetworkInterface ec2:DeleteNetworkInterface",
    "AWS::EMR::Cluster": "elasticmapreduce:RunJobFlow elasticmapreduce:DescribeCluster elasticmapreduce:AddTags "
    "elasticmapreduce:TerminateJobFlows iam:PassRole",
    "AWS::Events::Rule": "events:PutRule events:DescribeRule events:PutTargets events:TagResource events:DeleteRule "
    "events:RemoveTargets events:ListTargetsByRule",
    "AWS::FSx::DataRepositoryAssociation": "fsx:CreateDataRepositoryAssociation fsx:DeleteDataRepositoryAssociation "
    "fsx:DescribeDataRepositoryAssociations fsx:TagResource",
    "AWS::FSx::FileSystem": "fsx:CreateFileSystem fsx:DescribeFileSystems fsx:TagResource ec2:DescribeSecurityGroups "
    "ec2:DescribeSubnets",
    "AWS::IAM::InstanceProfile": "iam:CreateInstanceProfile iam:DeleteInstanceProfile iam:GetInstanceProfile "
    "iam:AddRoleToInstanceProfile iam:RemoveRoleFromInstanceProfile iam:PassRole",
    "AWS::IAM::Policy": "iam:PutRolePolicy iam:GetRolePolicy iam:DeleteRolePolicy",
    "AWS::IAM::Role": "iam:CreateRole iam:DeleteRole iam:GetRole iam:TagRole iam:PutRolePolicy iam:GetRolePolicy "
    "iam:DeleteRolePolicy iam:ListRolePolicies iam:ListAttachedRolePolicies",
    "AWS::ImageBuilder::Component": "imagebuilder:CreateComponent imagebuilder:DeleteComponent "
    "imagebuilder:GetComponent imagebuilder:TagResource imagebuilder:UntagResource",
    "AWS::ImageBuilder::DistributionConfiguration": "imagebuilder:CreateDistributionConfiguration "
    "imagebuilder:DeleteDistributionConfiguration imagebuilder:GetDistributionConfiguration imagebuilder:TagResource "
    "imagebuilder:UntagResource",
    "AWS::ImageBuilder::Image": "imagebuilder:CreateImage imagebuilder:DeleteImage imagebuilder:GetImage "
    "imagebuilder:GetImageRecipe imagebuilder:GetInfrastructureConfiguration imagebuilder:GetDistributionConfiguration "
    "imagebuilder:CancelImageCreation imagebuilder:StartResourceStateUpdate imagebuilder:GetLifecycleExecution "
    "imagebuilder:TagResource imagebuilder:UntagResource iam:PassRole iam:GetRole",
    "AWS::ImageBuilder::ImageRecipe": "imagebuilder:CreateImageRecipe imagebuilder:DeleteImageRecipe "
    "imagebuilder:GetImageRecipe imagebuilder:GetComponent imagebuilder:TagResource imagebuilder:UntagResource "
    "ec2:DescribeImages ssm:GetParameter",
    "AWS::ImageBuilder::InfrastructureConfiguration": "imagebuilder:CreateInfrastructureConfiguration "
    "imagebuilder:DeleteInfrastructureConfiguration imagebuilder:GetInfrastructureConfiguration "
    "imagebuilder:TagResource imagebuilder:UntagResource iam:PassRole iam:GetRole iam:GetInstanceProfile",
    "AWS::Lambda::Function": "lambda:CreateFunction lambda:DeleteFunction lambda:GetFunction lambda:TagResource "
    "iam:PassRole",
    "AWS::Lambda::Permission": "lambda:AddPermission lambda:RemovePermission",
    "AWS::Logs::LogGroup": "logs:CreateLogGroup logs:DeleteLogGroup logs:DescribeLogGroups logs:PutRetentionPolicy "
    "logs:TagResource",
    "AWS::SNS::Subscription": "sns:Subscribe sns:Unsubscribe sns:GetSubscriptionAttributes",
    "AWS::SNS::Topic": "sns:CreateTopic sns:DeleteTopic sns:GetTopicAttributes sns:TagResource",
    "AWS::SQS::Queue": "sqs:CreateQueue sqs:DeleteQueue sqs:GetQueueAttributes sqs:TagQueue",
    "AWS::SQS::QueuePolicy": "sqs:SetQueueAttributes",
}

# What a change in place takes beside that: tags, and the properties that a changed phalanx.yaml changes.
_OF_CHANGES: Mapping[str, str] = {
    "AWS::AutoScaling::AutoScalingGroup": "autoscaling:DeleteTags",
    "AWS::DynamoDB::Table": "dynamodb:UntagResource",
    "AWS::EC2::LaunchTemplate": "ec2:CreateLaunchTemplateVersion",
    "AWS::EC2::VPC": "ec2:DeleteTags",
    "AWS::EC2::VPCEndpoint": "ec2:ModifyVpcEndpoint",
    "AWS::EFS::FileSystem": "elasticfilesystem:UpdateFileSystem elasticfilesystem:UntagResource",
    "AWS::Events::Rule": "events:UntagResource",
    "AWS::FSx::DataRepositoryAssociation": "fsx:UpdateDataRepositoryAssociation fsx:UntagResource",
    "AWS::FSx::FileSystem": "fsx:UpdateFileSystem fsx:UntagResource",
    "AWS::IAM::Role": "iam:UpdateRole iam:UpdateRoleDescription iam:UpdateAssumeRolePolicy "
    "iam:PutRolePermissionsBoundary iam:DeleteRolePermissionsBoundary iam:UntagRole",
    "AWS::Lambda::Function": "lambda:UpdateFunctionCode lambda:UpdateFunctionConfiguration lambda:UntagResource",
    "AWS::Logs::LogGroup": "logs:UntagResource",
    "AWS::SNS::Subscription": "sns:SetSubscriptionAttributes",
    "AWS::SNS::Topic": "sns:SetTopicAttributes sns:UntagResource",
    "AWS::SQS::Queue": "sqs:UntagQueue",
}

_OF_PROPERTIES: Mapping[tuple[str, str], str] = {
    ("AWS::EC2::VPCEndpoint", "PrivateDnsEnabled"): "route53:AssociateVPCWithHostedZone",
    ("AWS::IAM::Role", "ManagedPolicyArns"): "iam:AttachRolePolicy iam:DetachRolePolicy",
}

_OWN = """
    autoscaling:CreateOrUpdateTags autoscaling:DescribeAutoScalingGroups autoscaling:DescribeScalingActivities
    autoscaling:DescribeScheduledActions autoscaling:PutScheduledUpdateGroupAction
    autoscaling:UpdateAutoScalingGroup cloudformation:CreateChangeSet cloudformation:CreateStack
    cloudformation:DeleteChangeSet cloudformation:DeleteStack cloudformation:DescribeChangeSet
    cloudformation:ExecuteChangeSet cloudformation:DescribeStackEvents cloudformation:DescribeStacks
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
OPTIONAL = ("ec2:DescribeSpotPriceHistory", "pricing:GetProducts")
"""Those without which it uses the table's prices."""
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
    for kind in sorted({resource["Type"] for resource in document["Resources"].values()}):
        yield from _OF_TYPES[kind].split()
        yield from _OF_CHANGES.get(kind, "").split() if changes else ()
    for resource in document["Resources"].values():
        for name in resource.get("Properties", {}):
            yield from _OF_PROPERTIES.get((resource["Type"], name), "").split()
