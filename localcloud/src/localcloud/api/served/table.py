"""Which operations the local cloud serves. In the others moto would only keep a record, and report a success.

Reading is served wherever moto does it, because an answer that nothing is there is true. Changing is served only
where the change has its effect here, so an operation is added to the table when it has one.
"""

from __future__ import annotations

import functools
import re

# Service, as in IAM's actions → its operations; `*` stands for the rest of a name.
SERVED = {
    "autoscaling": """
        CreateAutoScalingGroup UpdateAutoScalingGroup DeleteAutoScalingGroup DescribeAutoScalingGroups
        DescribeAutoScalingInstances DescribeScalingActivities DescribeTags CreateOrUpdateTags DeleteTags
        SetDesiredCapacity TerminateInstanceInAutoScalingGroup SetInstanceProtection SetInstanceHealth SuspendProcesses
        ResumeProcesses PutNotificationConfiguration DeleteNotificationConfiguration
        DescribeNotificationConfigurations CreateLaunchConfiguration DescribeLaunchConfigurations
        PutScheduledUpdateGroupAction DescribeScheduledActions DeleteScheduledAction""",
    "cloudformation": """
        CancelUpdateStack ContinueUpdateRollback CreateChangeSet DeleteChangeSet DescribeChangeSet DescribeEvents
        ExecuteChangeSet GetTemplateSummary ListChangeSets ListExports ListImports CreateStack DeleteStack UpdateStack
        DescribeStackEvents DescribeStackResource DescribeStackResources DescribeStacks GetTemplate
        ListStackResources ListStacks SignalResource ValidateTemplate""",
    "cloudwatch": "Describe* Get* List* PutMetricData",
    "dynamodb": """
        BatchExecuteStatement BatchGetItem BatchWriteItem CreateTable DeleteItem DeleteTable Describe* ExecuteStatement
        ExecuteTransaction GetItem List* PutItem Query Scan TagResource TransactGetItems TransactWriteItems
        UntagResource UpdateItem UpdateTable UpdateTimeToLive""",
    "ec2": """
        Describe* Get* AllocateAddress AssociateAddress AssociateIamInstanceProfile AssociateRouteTable
        AttachInternetGateway AuthorizeSecurityGroup* CreateInternetGateway CreateKeyPair CreateLaunchTemplate
        CreateLaunchTemplateVersion CreateManagedPrefixList CreateNatGateway CreateNetworkAcl* CreateNetworkInterface
        CreateRoute CreateRouteTable CreateSecurityGroup CreateSubnet CreateTags CreateVpc CreateVpcEndpoint
        DeleteInternetGateway DeleteKeyPair DeleteLaunchTemplate DeleteManagedPrefixList DeleteNatGateway
        DeleteNetworkAcl* DeleteNetworkInterface DeleteRoute DeleteRouteTable DeleteSecurityGroup
        DeleteSubnet DeleteTags DeleteVpc DeleteVpcEndpoints DetachInternetGateway DisassociateAddress
        DisassociateIamInstanceProfile DisassociateRouteTable ImportKeyPair ModifyInstanceAttribute
        ModifyInstanceMetadataOptions ModifyLaunchTemplate ModifyManagedPrefixList ModifyNetworkInterfaceAttribute
        ModifySecurityGroupRules ReplaceNetworkAcl* CreatePlacementGroup DeletePlacementGroup
        CancelCapacityReservation CreateCapacityReservation PurchaseCapacityBlock
        DeleteSnapshot DeregisterImage
        ModifySubnetAttribute ModifyVpcAttribute ModifyVpcEndpoint RebootInstances ReleaseAddress ReplaceRoute
        ReplaceIamInstanceProfileAssociation ReplaceRouteTableAssociation RevokeSecurityGroup* RunInstances
        StartInstances StopInstances TerminateInstances UpdateSecurityGroupRuleDescriptions*""",
    "elasticfilesystem": """
        CreateFileSystem CreateMountTarget CreateTags DeleteFileSystem DeleteMountTarget DeleteTags Describe* List*
        ModifyMountTargetSecurityGroups PutBackupPolicy PutLifecycleConfiguration TagResource UntagResource""",
    "elasticmapreduce": """
        Describe* Get* List* AddJobFlowSteps AddTags CancelSteps ModifyInstanceGroups PutBlockPublicAccessConfiguration
        RemoveTags RunJobFlow SetTerminationProtection TerminateJobFlows""",
    "events": "Describe* List*",
    "fsx": """
        CreateDataRepositoryAssociation CreateFileSystem DeleteDataRepositoryAssociation DeleteFileSystem
        DescribeDataRepositoryAssociations DescribeFileSystems ListTagsForResource TagResource UntagResource
        UpdateFileSystem""",
    "iam": """
        Get* List* Simulate* AddRoleToInstanceProfile AttachGroupPolicy AttachRolePolicy AttachUserPolicy
        AddUserToGroup CreateGroup CreateInstanceProfile CreatePolicy CreatePolicyVersion CreateRole
        CreateServiceLinkedRole CreateUser DeleteGroup DeleteGroupPolicy DeleteInstanceProfile DeletePolicy
        DeletePolicyVersion DeleteRole DeleteRolePermissionsBoundary DeleteRolePolicy DeleteServiceLinkedRole
        DeleteUser DeleteUserPolicy DetachGroupPolicy DetachRolePolicy DetachUserPolicy PutGroupPolicy
        PutRolePermissionsBoundary PutRolePolicy PutUserPolicy RemoveRoleFromInstanceProfile RemoveUserFromGroup
        SetDefaultPolicyVersion Tag* Untag* UpdateAssumeRolePolicy UpdateGroup UpdateRole UpdateRoleDescription
        UpdateUser""",
    "kms": """
        Get* List* CreateAlias CreateGrant CreateKey DeleteAlias DescribeKey DisableKey EnableKey PutKeyPolicy
        RetireGrant RevokeGrant ScheduleKeyDeletion TagResource UntagResource""",
    "lambda": """
        Get* List* AddPermission CreateAlias CreateFunction DeleteAlias DeleteFunction DeleteFunctionConcurrency Invoke
        InvokeAsync PublishVersion PutFunctionConcurrency RemovePermission TagResource UntagResource UpdateAlias
        UpdateFunctionCode UpdateFunctionConfiguration""",
    "logs": """
        Describe* Get* List* CreateLogGroup CreateLogStream DeleteLogGroup DeleteLogStream DeleteRetentionPolicy
        FilterLogEvents PutLogEvents PutRetentionPolicy TagLogGroup TagResource UntagLogGroup UntagResource""",
    "organizations": "DescribeEffectivePolicy",
    "pricing": "GetProducts",
    "s3": """
        Get* Head* List* AbortMultipartUpload CompleteMultipartUpload CopyObject CreateBucket CreateMultipartUpload
        DeleteBucket DeleteBucketCors DeleteBucketEncryption DeleteBucketOwnershipControls DeleteBucketPolicy
        DeleteBucketTagging DeleteObject DeleteObjects DeleteObjectTagging DeletePublicAccessBlock PutBucketCors
        PutBucketEncryption PutBucketOwnershipControls PutBucketTagging PutBucketVersioning PutObject PutObjectTagging
        PutPublicAccessBlock UploadPart UploadPartCopy""",
    "servicequotas": "Get* List*",
    "sns": """
        Get* List* AddPermission ConfirmSubscription CreateTopic DeleteTopic Publish PublishBatch RemovePermission
        SetSubscriptionAttributes SetTopicAttributes Subscribe TagResource Unsubscribe UntagResource""",
    "sqs": """
        Get* List* AddPermission ChangeMessageVisibility ChangeMessageVisibilityBatch CreateQueue DeleteMessage
        DeleteMessageBatch DeleteQueue PurgeQueue ReceiveMessage RemovePermission SendMessage SendMessageBatch
        SetQueueAttributes TagQueue UntagQueue""",
    "ssm": """
        AddTagsToResource DeleteParameter DeleteParameters DescribeParameters GetParameter* LabelParameterVersion
        ListTagsForResource PutParameter RemoveTagsFromResource UnlabelParameterVersion""",
    "sts": "AssumeRole DecodeAuthorizationMessage GetAccessKeyInfo GetCallerIdentity",
    "tag": "GetResources GetTagKeys GetTagValues",
}


# Parameters of operations of EC2, and properties of resource types, that ask for IPv6, for ways to other networks, or
# to keep an instance's memory while it is stopped.
_IPV6 = "AmazonProvidedIpv6CidrBlock Ipv6CidrBlock Ipv6Pool Ipv6IpamPoolId Ipv6NetmaskLength Ipv6Native EnableDns64"
_IPV6 += " AssignIpv6AddressOnCreation Ipv6AddressCount Ipv6Addresses Ipv6Prefixes Ipv6PrefixCount EnablePrimaryIpv6"
_WAYS = "DestinationIpv6CidrBlock VpcPeeringConnectionId TransitGatewayId EgressOnlyInternetGatewayId CarrierGatewayId"
_WAYS += " LocalGatewayId CoreNetworkArn"
WITHOUT_EFFECT = frozenset(f"{_IPV6} {_WAYS} Hibernate".split())
"""What has no effect in the local cloud, above all in its networks, and is refused where it is asked for."""


def is_served(service: str, operation: str) -> bool:
    """Whether the local cloud serves an operation."""
    return bool(_names(service).fullmatch(operation))


@functools.cache
def _names(service: str) -> re.Pattern[str]:
    patterns = (name.replace("*", ".*") for name in SERVED.get(service, "").split())
    return re.compile("|".join(patterns) or r"(?!)")
