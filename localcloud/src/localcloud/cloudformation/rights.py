"""What CloudFormation does with its caller's rights: the calls that make, change and delete each type of resource.

A role's session that creates, updates or deletes a stack needs every one of them, as on AWS. A type without a row needs
none here. Source: the handlers' permissions in AWS's resource schemas, less those for properties that a stack does not
set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from localcloud.cloudformation.errors import ResourceFailed

if TYPE_CHECKING:
    from localcloud.iam.credentials import May

# Type → (calls that make it, calls that delete it, the resource they are about).
_CALLS: Mapping[str, tuple[str, str, str]] = {
    "AWS::AutoScaling::AutoScalingGroup": (
        "autoscaling:CreateAutoScalingGroup autoscaling:CreateOrUpdateTags autoscaling:PutNotificationConfiguration "
        "autoscaling:DescribeAutoScalingGroups autoscaling:DescribeScalingActivities ec2:RunInstances",
        "autoscaling:UpdateAutoScalingGroup autoscaling:DeleteAutoScalingGroup autoscaling:DescribeAutoScalingGroups",
        "autoScalingGroup:1:autoScalingGroupName/{name}",
    ),
    "AWS::AutoScaling::ScheduledAction": (
        "autoscaling:PutScheduledUpdateGroupAction autoscaling:DescribeScheduledActions",
        "autoscaling:DeleteScheduledAction autoscaling:DescribeScheduledActions",
        "autoScalingGroup:1:autoScalingGroupName/{name}",
    ),
    "AWS::DynamoDB::Table": (
        "dynamodb:CreateTable dynamodb:DescribeTable dynamodb:TagResource",
        "dynamodb:DeleteTable dynamodb:DescribeTable",
        "table/{name}",
    ),
    "AWS::EC2::EIP": ("ec2:AllocateAddress ec2:CreateTags", "ec2:ReleaseAddress ec2:DescribeAddresses", "elastic-ip/1"),
    "AWS::EC2::InternetGateway": (
        "ec2:CreateInternetGateway ec2:CreateTags",
        "ec2:DeleteInternetGateway ec2:DescribeInternetGateways",
        "internet-gateway/1",
    ),
    "AWS::EC2::LaunchTemplate": (
        "ec2:CreateLaunchTemplate ec2:CreateTags",
        "ec2:DeleteLaunchTemplate ec2:DescribeLaunchTemplates",
        "launch-template/1",
    ),
    "AWS::EC2::NatGateway": (
        "ec2:CreateNatGateway ec2:DescribeNatGateways ec2:CreateTags",
        "ec2:DeleteNatGateway ec2:DescribeNatGateways",
        "natgateway/1",
    ),
    "AWS::EC2::Route": (
        "ec2:CreateRoute ec2:DescribeRouteTables",
        "ec2:DeleteRoute ec2:DescribeRouteTables",
        "route-table/1",
    ),
    "AWS::EC2::RouteTable": ("ec2:CreateRouteTable ec2:CreateTags", "ec2:DeleteRouteTable", "route-table/1"),
    "AWS::EC2::SecurityGroup": (
        "ec2:CreateSecurityGroup ec2:DescribeSecurityGroups ec2:AuthorizeSecurityGroupEgress "
        "ec2:AuthorizeSecurityGroupIngress ec2:RevokeSecurityGroupEgress ec2:CreateTags",
        "ec2:DeleteSecurityGroup ec2:DescribeSecurityGroups",
        "security-group/1",
    ),
    "AWS::EC2::SecurityGroupEgress": (
        "ec2:AuthorizeSecurityGroupEgress ec2:DescribeSecurityGroupRules",
        "ec2:RevokeSecurityGroupEgress ec2:DescribeSecurityGroupRules",
        "security-group/1",
    ),
    "AWS::EC2::SecurityGroupIngress": (
        "ec2:AuthorizeSecurityGroupIngress ec2:DescribeSecurityGroupRules",
        "ec2:RevokeSecurityGroupIngress ec2:DescribeSecurityGroupRules",
        "security-group/1",
    ),
    "AWS::EC2::Subnet": (
        "ec2:CreateSubnet ec2:DescribeSubnets ec2:ModifySubnetAttribute ec2:CreateTags",
        "ec2:DeleteSubnet ec2:DescribeSubnets",
        "subnet/1",
    ),
    "AWS::EC2::SubnetRouteTableAssociation": (
        "ec2:AssociateRouteTable ec2:DescribeRouteTables",
        "ec2:DisassociateRouteTable ec2:DescribeRouteTables",
        "route-table/1",
    ),
    "AWS::EC2::VPC": (
        "ec2:CreateVpc ec2:DescribeVpcs ec2:DescribeVpcAttribute ec2:ModifyVpcAttribute ec2:CreateTags",
        "ec2:DeleteVpc ec2:DescribeVpcs",
        "vpc/1",
    ),
    "AWS::EC2::VPCEndpoint": (
        "ec2:CreateVpcEndpoint ec2:DescribeVpcEndpoints ec2:CreateTags",
        "ec2:DeleteVpcEndpoints ec2:DescribeVpcEndpoints",
        "vpc-endpoint/1",
    ),
    "AWS::EC2::VPCGatewayAttachment": (
        "ec2:AttachInternetGateway ec2:DescribeInternetGateways",
        "ec2:DetachInternetGateway ec2:DescribeInternetGateways",
        "internet-gateway/1",
    ),
    "AWS::EFS::FileSystem": (
        "elasticfilesystem:CreateFileSystem elasticfilesystem:DescribeFileSystems elasticfilesystem:TagResource",
        "elasticfilesystem:DeleteFileSystem elasticfilesystem:DescribeFileSystems",
        "file-system/{name}",
    ),
    "AWS::EFS::MountTarget": (
        "elasticfilesystem:CreateMountTarget elasticfilesystem:DescribeMountTargets ec2:CreateNetworkInterface "
        "ec2:DescribeNetworkInterfaces ec2:DescribeSubnets",
        "elasticfilesystem:DeleteMountTarget elasticfilesystem:DescribeMountTargets ec2:DeleteNetworkInterface",
        "file-system/{name}",
    ),
    "AWS::EMR::Cluster": (
        "elasticmapreduce:RunJobFlow elasticmapreduce:DescribeCluster elasticmapreduce:AddTags iam:PassRole",
        "elasticmapreduce:TerminateJobFlows elasticmapreduce:DescribeCluster",
        "cluster/1",
    ),
    "AWS::Events::Rule": (
        "events:PutRule events:DescribeRule events:PutTargets events:TagResource",
        "events:DeleteRule events:DescribeRule events:RemoveTargets events:ListTargetsByRule",
        "rule/{name}",
    ),
    "AWS::FSx::DataRepositoryAssociation": (
        "fsx:CreateDataRepositoryAssociation fsx:DescribeDataRepositoryAssociations fsx:TagResource",
        "fsx:DeleteDataRepositoryAssociation fsx:DescribeDataRepositoryAssociations",
        "association/fs-1/dra-1",
    ),
    "AWS::FSx::FileSystem": (
        "fsx:CreateFileSystem fsx:DescribeFileSystems fsx:TagResource",
        "fsx:DeleteFileSystem fsx:DescribeFileSystems",
        "file-system/1",
    ),
    "AWS::IAM::InstanceProfile": (
        "iam:CreateInstanceProfile iam:AddRoleToInstanceProfile iam:GetInstanceProfile iam:PassRole",
        "iam:RemoveRoleFromInstanceProfile iam:DeleteInstanceProfile iam:GetInstanceProfile",
        "instance-profile/{name}",
    ),
    "AWS::IAM::Policy": ("iam:PutRolePolicy iam:GetRolePolicy", "iam:DeleteRolePolicy", "role/{name}"),
    "AWS::IAM::Role": (
        "iam:CreateRole iam:PutRolePolicy iam:GetRolePolicy iam:TagRole iam:GetRole",
        "iam:DeleteRole iam:DeleteRolePolicy iam:GetRole iam:ListAttachedRolePolicies iam:ListRolePolicies",
        "role/{name}",
    ),
    "AWS::ImageBuilder::Component": (
        "imagebuilder:CreateComponent imagebuilder:GetComponent imagebuilder:TagResource",
        "imagebuilder:DeleteComponent imagebuilder:GetComponent imagebuilder:UntagResource",
        "component/{name}",
    ),
    "AWS::ImageBuilder::DistributionConfiguration": (
        "imagebuilder:CreateDistributionConfiguration imagebuilder:GetDistributionConfiguration "
        "imagebuilder:TagResource",
        "imagebuilder:DeleteDistributionConfiguration imagebuilder:GetDistributionConfiguration "
        "imagebuilder:UntagResource",
        "distribution-configuration/{name}",
    ),
    "AWS::ImageBuilder::Image": (
        "imagebuilder:CreateImage imagebuilder:GetImage imagebuilder:TagResource imagebuilder:GetImageRecipe "
        "imagebuilder:GetInfrastructureConfiguration imagebuilder:GetDistributionConfiguration",
        "imagebuilder:DeleteImage imagebuilder:GetImage imagebuilder:CancelImageCreation imagebuilder:UntagResource "
        "imagebuilder:StartResourceStateUpdate imagebuilder:GetLifecycleExecution",
        "image/{name}",
    ),
    "AWS::ImageBuilder::ImageRecipe": (
        "imagebuilder:CreateImageRecipe imagebuilder:GetImageRecipe imagebuilder:TagResource ec2:DescribeImages "
        "imagebuilder:GetComponent ssm:GetParameter",
        "imagebuilder:DeleteImageRecipe imagebuilder:GetImageRecipe imagebuilder:UntagResource",
        "image-recipe/{name}",
    ),
    "AWS::ImageBuilder::InfrastructureConfiguration": (
        "imagebuilder:CreateInfrastructureConfiguration imagebuilder:GetInfrastructureConfiguration "
        "imagebuilder:TagResource",
        "imagebuilder:DeleteInfrastructureConfiguration imagebuilder:GetInfrastructureConfiguration "
        "imagebuilder:UntagResource",
        "infrastructure-configuration/{name}",
    ),
    "AWS::Lambda::Function": (
        "lambda:CreateFunction lambda:GetFunction lambda:TagResource",
        "lambda:DeleteFunction lambda:GetFunction",
        "function:{name}",
    ),
    "AWS::Lambda::Permission": ("lambda:AddPermission", "lambda:RemovePermission", "function:{name}"),
    "AWS::Logs::LogGroup": (
        "logs:CreateLogGroup logs:DescribeLogGroups logs:PutRetentionPolicy logs:TagResource",
        "logs:DeleteLogGroup logs:DescribeLogGroups",
        "log-group:{name}",
    ),
    "AWS::SNS::Subscription": ("sns:Subscribe", "sns:Unsubscribe sns:GetSubscriptionAttributes", "{name}"),
    "AWS::SNS::Topic": (
        "sns:CreateTopic sns:TagResource sns:GetTopicAttributes",
        "sns:DeleteTopic sns:GetTopicAttributes",
        "{name}",
    ),
    "AWS::SQS::Queue": (
        "sqs:CreateQueue sqs:GetQueueAttributes sqs:TagQueue",
        "sqs:DeleteQueue sqs:GetQueueAttributes",
        "{name}",
    ),
    "AWS::SQS::QueuePolicy": ("sqs:SetQueueAttributes", "sqs:SetQueueAttributes", "{name}"),
}
# Type → the calls that change it in place.
_UPDATES: Mapping[str, str] = {
    "AWS::AutoScaling::AutoScalingGroup": "autoscaling:UpdateAutoScalingGroup autoscaling:CreateOrUpdateTags "
    "autoscaling:DeleteTags autoscaling:PutNotificationConfiguration autoscaling:DescribeAutoScalingGroups",
    "AWS::AutoScaling::ScheduledAction": "autoscaling:PutScheduledUpdateGroupAction",
    "AWS::DynamoDB::Table": "dynamodb:DescribeTable dynamodb:TagResource dynamodb:UntagResource",
    "AWS::EC2::EIP": "ec2:CreateTags ec2:DeleteTags",
    "AWS::EC2::InternetGateway": "ec2:CreateTags ec2:DeleteTags",
    "AWS::EC2::LaunchTemplate": "ec2:CreateLaunchTemplateVersion ec2:CreateTags ec2:DeleteTags",
    "AWS::EC2::NatGateway": "ec2:CreateTags ec2:DeleteTags",
    "AWS::EC2::RouteTable": "ec2:CreateTags ec2:DeleteTags",
    "AWS::EC2::SecurityGroup": "ec2:AuthorizeSecurityGroupEgress ec2:AuthorizeSecurityGroupIngress "
    "ec2:RevokeSecurityGroupEgress ec2:RevokeSecurityGroupIngress ec2:CreateTags ec2:DeleteTags",
    "AWS::EC2::Subnet": "ec2:CreateTags ec2:DeleteTags",
    "AWS::EC2::VPC": "ec2:CreateTags ec2:DeleteTags",
    "AWS::EC2::VPCEndpoint": "ec2:ModifyVpcEndpoint ec2:DescribeVpcEndpoints ec2:CreateTags ec2:DeleteTags",
    "AWS::EFS::FileSystem": "elasticfilesystem:UpdateFileSystem elasticfilesystem:DescribeFileSystems "
    "elasticfilesystem:TagResource elasticfilesystem:UntagResource",
    "AWS::Events::Rule": "events:PutRule events:DescribeRule events:PutTargets events:RemoveTargets events:TagResource "
    "events:UntagResource",
    "AWS::FSx::DataRepositoryAssociation": "fsx:UpdateDataRepositoryAssociation "
    "fsx:DescribeDataRepositoryAssociations fsx:TagResource fsx:UntagResource",
    "AWS::FSx::FileSystem": "fsx:UpdateFileSystem fsx:DescribeFileSystems fsx:TagResource fsx:UntagResource",
    "AWS::IAM::Policy": "iam:PutRolePolicy iam:DeleteRolePolicy",
    "AWS::IAM::Role": "iam:UpdateRole iam:UpdateRoleDescription iam:UpdateAssumeRolePolicy iam:PutRolePolicy "
    "iam:DeleteRolePolicy iam:PutRolePermissionsBoundary iam:DeleteRolePermissionsBoundary iam:TagRole iam:UntagRole",
    "AWS::Lambda::Function": "lambda:UpdateFunctionCode lambda:UpdateFunctionConfiguration lambda:GetFunction "
    "lambda:TagResource lambda:UntagResource",
    "AWS::Logs::LogGroup": "logs:DescribeLogGroups logs:PutRetentionPolicy logs:TagResource logs:UntagResource",
    "AWS::SNS::Subscription": "sns:SetSubscriptionAttributes",
    "AWS::SNS::Topic": "sns:SetTopicAttributes sns:GetTopicAttributes sns:TagResource sns:UntagResource",
    "AWS::SQS::Queue": "sqs:SetQueueAttributes sqs:GetQueueAttributes sqs:TagQueue sqs:UntagQueue",
    "AWS::SQS::QueuePolicy": "sqs:SetQueueAttributes",
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
    "ec2:RunInstances": "image/1 instance/1 launch-template/1 network-interface/1 security-group/1 subnet/1 volume/1",
    "fsx:CreateDataRepositoryAssociation": "association/fs-1/dra-1 file-system/1",
    "iam:PassRole": "role/{name}",
    "imagebuilder:GetComponent": "component/{name}",
    "imagebuilder:GetDistributionConfiguration": "distribution-configuration/{name}",
    "imagebuilder:GetImageRecipe": "image-recipe/{name}",
    "imagebuilder:GetInfrastructureConfiguration": "infrastructure-configuration/{name}",
    # Its id is the service's own.
    "imagebuilder:GetLifecycleExecution": "lifecycle-execution/lce-1",
    "route53:AssociateVPCWithHostedZone": "hostedzone/1",
    "ssm:GetParameter": "parameter/aws/service/1",
}
# Actions that IAM judges without a resource, beside EC2's, Auto Scaling's and FSx's descriptions.
_WITHOUT_RESOURCE = frozenset(
    {"elasticfilesystem:CreateFileSystem", "elasticmapreduce:RunJobFlow", "logs:DescribeLogGroups"}
)
_DESCRIPTIONS = ("autoscaling:Describe", "ec2:Describe", "fsx:Describe")
_OF_ONE = ("ec2:DescribeVpcAttribute",)
OF_EFS = "ec2:DeleteNetworkInterface"
"""About an interface that EFS has made, which has none of the stack's tags."""
# What an ARN has in place of the region and the account.
_PLACES = {"iam": ":{account}", "route53": ":"}
_WITHOUT_ACCOUNT = ("ec2:image/", "ssm:parameter/aws/")
# Image Builder works with a role of its own, which the first call makes (docs/aws-behaviour.md 9.12).
_OWN_ROLE = "role/aws-service-role/imagebuilder.amazonaws.com/AWSServiceRoleForImageBuilder"
_BY_ITS_ROLE = (("iam:CreateServiceLinkedRole", _OWN_ROLE), ("iam:GetRole", _OWN_ROLE))
# The same of Auto Scaling, EFS, FSx and EMR (docs/aws-behaviour.md 6.3). This is always an account's first call.
_SCALING_ROLE = "role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
_EFS_ROLE = "role/aws-service-role/elasticfilesystem.amazonaws.com/AWSServiceRoleForAmazonElasticFileSystem"
_EMR_ROLE = "role/aws-service-role/elasticmapreduce.amazonaws.com/AWSServiceRoleForEMRCleanup"
_FSX_ROLE = "role/aws-service-role/fsx.amazonaws.com/AWSServiceRoleForAmazonFSx"
# FSx makes one for each link to S3 (docs/aws-behaviour.md 4.13).
_LINK_ROLE = "role/aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_fs-1"
_OF_LINK = tuple(
    (f"iam:{verb}", _LINK_ROLE) for verb in ("CreateServiceLinkedRole", "AttachRolePolicy", "PutRolePolicy")
)
# (Type, what is done) → calls that are about other resources.
_OTHERS: Mapping[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("AWS::AutoScaling::AutoScalingGroup", "create"): (("iam:CreateServiceLinkedRole", _SCALING_ROLE),),
    ("AWS::EFS::MountTarget", "create"): (("iam:CreateServiceLinkedRole", _EFS_ROLE),),
    ("AWS::EMR::Cluster", "create"): (("iam:CreateServiceLinkedRole", _EMR_ROLE),),
    ("AWS::FSx::DataRepositoryAssociation", "create"): _OF_LINK,
    ("AWS::FSx::FileSystem", "create"): (("iam:CreateServiceLinkedRole", _FSX_ROLE),),
    ("AWS::ImageBuilder::Component", "create"): _BY_ITS_ROLE,
    ("AWS::ImageBuilder::DistributionConfiguration", "create"): _BY_ITS_ROLE,
    ("AWS::ImageBuilder::Image", "create"): (*_BY_ITS_ROLE, ("iam:PassRole", "role/{stack}-DeletionRole-0123456789AB")),
    ("AWS::ImageBuilder::Image", "delete"): (("iam:PassRole", "role/{stack}-DeletionRole-0123456789AB"),),
    ("AWS::ImageBuilder::ImageRecipe", "create"): _BY_ITS_ROLE,
    ("AWS::ImageBuilder::InfrastructureConfiguration", "create"): (
        *_BY_ITS_ROLE,
        ("iam:PassRole", "role/{stack}-BuildRole-0123456789AB"),
        ("iam:GetInstanceProfile", "instance-profile/{stack}-BuildProfile-0123456789AB"),
    ),
}


# (Type, property) → what it takes beside that to make and to delete the resource.
_OF_PROPERTIES: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("AWS::EC2::VPCEndpoint", "PrivateDnsEnabled"): {"create": "route53:AssociateVPCWithHostedZone"},
    ("AWS::IAM::Role", "ManagedPolicyArns"): {"create": "iam:AttachRolePolicy", "delete": "iam:DetachRolePolicy"},
}
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
) -> None:
    """Raise ResourceFailed, in AWS's words, unless the caller may create, update or delete a resource of this type.

    `place` is the region and the account, as in an ARN; `tags` are those that the stack gives its resources; `name` is
    the resource's own, and `properties` those that it has.
    """
    if may is None:
        return
    given = properties or {}
    tagged = {f"aws:resourcetag/{key.lower()}": [value] for key, value in tags.items()}
    subnet = _arn("ec2:", f"subnet/{given.get('SubnetId', '')}", *place.split(":"))
    refusals = (
        may(action, arn, {"ec2:subnet": [subnet]} if action == OF_EFS else tagged)
        for action, arn in calls(kind, stack, place, doing, name, given)
    )
    refusal = next(filter(None, refusals), "")
    if refusal:
        raise ResourceFailed(f"{refusal} (Service: CloudFormation, Status Code: 403)")


def calls(
    kind: str, stack: str, place: str, doing: str, name: str = "", properties: Iterable[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the calls that create, update or delete a resource of this type, each with the ARN that it is about.

    One without a name gets one of those that CloudFormation makes.
    """
    created, deleted, about = _CALLS.get(kind, ("", "", ""))
    chosen = {"create": created, "update": _UPDATES.get(kind, ""), "delete": deleted}[doing]
    named = name or f"{stack}-{kind.rpartition(':')[2]}-0123456789AB"
    more = [_OF_PROPERTIES[kind, one].get(doing, "") for one in properties if (kind, one) in _OF_PROPERTIES]
    for action in " ".join([chosen, *more]).split():
        for resource in _TARGETS.get(action, about).split():
            yield action, _arn(action, resource.format(name=named), *place.split(":"))
    for action, resource in _OTHERS.get((kind, doing), ()):
        yield action, _arn(action, resource.format(stack=stack), *place.split(":"))


def _arn(action: str, resource: str, region: str, account: str) -> str:
    if action in _WITHOUT_RESOURCE or (action.startswith(_DESCRIPTIONS) and action not in _OF_ONE):
        return "*"
    service = action.partition(":")[0]
    owner = "" if f"{service}:{resource}".startswith(_WITHOUT_ACCOUNT) else account
    place = _PLACES.get(service, "{region}:{account}").format(region=region, account=owner)
    return f"arn:aws:{service}:{place}:{resource}"


def name_of(kind: str, physical_id: str, properties: Mapping[str, Any]) -> str:
    """Return the name of the resource that the calls for this one are about, as in its ARN; "" if it has none yet."""
    if _OWN_NAMES.get(kind) in properties:
        return properties[_OWN_NAMES[kind]]
    if kind.startswith("AWS::ImageBuilder::") and physical_id:
        return physical_id.split("/")[1]
    given = properties.get(_ABOUT[kind], "") if kind in _ABOUT else physical_id
    last = str(given[0] if isinstance(given, list) else given).rpartition("/")[2].rpartition(":")[2]
    return f"{properties.get('Path', '/')[1:]}{last}" if kind == "AWS::IAM::Role" and last else last


def types() -> Iterable[str]:
    """Return the types with a row."""
    return _CALLS
