"""A template like AWS's deep learning template of 2017, in Python."""

from __future__ import annotations

import json

from stack_fakes import HANDLE, waits

TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}
ALLOW = {"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": "*"}
IMAGE = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
LAUNCHED = "autoscaling:EC2_INSTANCE_LAUNCH"


def made(kind: str, depends_on: str | None = None, **properties):
    entry = {"Type": kind, "Properties": properties}
    return {**entry, "DependsOn": depends_on} if depends_on else entry


def ref(name: str):
    return {"Ref": name}


def att(name: str, attribute: str):
    return {"Fn::GetAtt": [name, attribute]}


def network():
    return {
        "Vpc": made("AWS::EC2::VPC", CidrBlock="10.0.0.0/16", EnableDnsHostnames=True, EnableDnsSupport="true"),
        "Gateway": made("AWS::EC2::InternetGateway"),
        "Attached": made("AWS::EC2::VPCGatewayAttachment", VpcId=ref("Vpc"), InternetGatewayId=ref("Gateway")),
        "Public": made(
            "AWS::EC2::Subnet",
            VpcId=ref("Vpc"),
            CidrBlock="10.0.0.0/24",
            AvailabilityZone="us-east-1a",
            MapPublicIpOnLaunch=True,
        ),
        "Private": made(
            "AWS::EC2::Subnet",
            VpcId=ref("Vpc"),
            CidrBlock="10.0.1.0/24",
            AvailabilityZone=att("Public", "AvailabilityZone"),
        ),
        "PublicTable": made("AWS::EC2::RouteTable", VpcId=ref("Vpc")),
        "PublicRoute": made(
            "AWS::EC2::Route",
            "Attached",
            RouteTableId=ref("PublicTable"),
            DestinationCidrBlock="0.0.0.0/0",
            GatewayId=ref("Gateway"),
        ),
        "PublicRoutes": made(
            "AWS::EC2::SubnetRouteTableAssociation", SubnetId=ref("Public"), RouteTableId=ref("PublicTable")
        ),
        "NatAddress": made("AWS::EC2::EIP", "Attached", Domain="vpc"),
        "Nat": made("AWS::EC2::NatGateway", SubnetId=ref("Public"), AllocationId=att("NatAddress", "AllocationId")),
        "PrivateTable": made("AWS::EC2::RouteTable", VpcId=ref("Vpc")),
        "PrivateRoute": made(
            "AWS::EC2::Route",
            RouteTableId=ref("PrivateTable"),
            DestinationCidrBlock="0.0.0.0/0",
            NatGatewayId=ref("Nat"),
        ),
        "PrivateRoutes": made(
            "AWS::EC2::SubnetRouteTableAssociation", SubnetId=ref("Private"), RouteTableId=ref("PrivateTable")
        ),
    }


def security():
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "CidrIp": "192.0.2.0/24", "Description": "ssh"}
    all_from = {"IpProtocol": "-1"}
    return {
        "HeadGroup": made(
            "AWS::EC2::SecurityGroup", GroupDescription="head", VpcId=ref("Vpc"), SecurityGroupIngress=[rule]
        ),
        "WorkerGroup": made(
            "AWS::EC2::SecurityGroup", GroupDescription="workers", VpcId=ref("Vpc"), SecurityGroupEgress=[rule]
        ),
        "HeadFromWorkers": made(
            "AWS::EC2::SecurityGroupIngress",
            GroupId=att("HeadGroup", "GroupId"),
            SourceSecurityGroupId=att("WorkerGroup", "GroupId"),
            **all_from,
        ),
        "WorkersToHead": made(
            "AWS::EC2::SecurityGroupEgress",
            GroupId=att("WorkerGroup", "GroupId"),
            DestinationSecurityGroupId=att("HeadGroup", "GroupId"),
            **all_from,
        ),
    }


def storage_and_messages():
    queue_policy = {
        "Statement": [{**ALLOW, "Principal": {"Service": "sns.amazonaws.com"}, "Resource": att("Queue", "Arn")}]
    }
    return {
        "Files": made("AWS::EFS::FileSystem", Encrypted=True, FileSystemTags=[{"Key": "who", "Value": "me"}]),
        "Target": made(
            "AWS::EFS::MountTarget",
            FileSystemId=ref("Files"),
            SubnetId=ref("Private"),
            SecurityGroups=[ref("WorkerGroup")],
        ),
        "Roster": made(
            "AWS::DynamoDB::Table",
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "item", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "item", "AttributeType": "S"}],
        ),
        "Queue": made("AWS::SQS::Queue", MessageRetentionPeriod=3600),
        "QueuePolicy": made("AWS::SQS::QueuePolicy", Queues=[ref("Queue")], PolicyDocument=queue_policy),
        "Topic": made("AWS::SNS::Topic"),
        "TopicPolicy": made("AWS::SNS::TopicPolicy", Topics=[ref("Topic")], PolicyDocument={"Statement": [ALLOW]}),
        "ToQueue": made("AWS::SNS::Subscription", TopicArn=ref("Topic"), Protocol="sqs", Endpoint=att("Queue", "Arn")),
        "Log": made("AWS::Logs::LogGroup", RetentionInDays=7),
    }


def access():
    policy = {"PolicyName": "inline", "PolicyDocument": {"Version": "2012-10-17", "Statement": [ALLOW]}}
    return {
        "Role": made("AWS::IAM::Role", AssumeRolePolicyDocument=TRUST, Policies=[policy]),
        "Policy": made("AWS::IAM::Policy", **{**policy, "PolicyName": "apart"}, Roles=[ref("Role")]),
        "Profile": made("AWS::IAM::InstanceProfile", Roles=[ref("Role")]),
        "FunctionRole": made(
            "AWS::IAM::Role", AssumeRolePolicyDocument=json.loads(json.dumps(TRUST).replace("ec2.", "lambda."))
        ),
        "Function": made(
            "AWS::Lambda::Function",
            Runtime="python3.12",
            Handler="index.handler",
            Role=att("FunctionRole", "Arn"),
            Code={"ZipFile": "def handler(event, context): pass\n"},
            Environment={"Variables": {"QUEUE": ref("Queue")}},
            Timeout=30,
        ),
        "Permission": made(
            "AWS::Lambda::Permission",
            FunctionName=att("Function", "Arn"),
            Action="lambda:InvokeFunction",
            Principal="sns.amazonaws.com",
            SourceArn=ref("Topic"),
        ),
    }


def fleet():
    data = {
        "ImageId": ref("Image"),
        "InstanceType": "c5.large",
        "IamInstanceProfile": {"Arn": att("Profile", "Arn")},
        "SecurityGroupIds": [ref("HeadGroup")],
        "UserData": {"Fn::Base64": {"Fn::Sub": "#!/bin/sh\necho ${AWS::StackName} ${Handle}"}},
    }
    launch = {"LaunchTemplateId": ref("Template"), "Version": att("Template", "LatestVersionNumber")}
    return {
        "Template": made("AWS::EC2::LaunchTemplate", LaunchTemplateData=data),
        "Handle": HANDLE,
        "Ready": {**waits(), "DependsOn": "Target"},
        "Group": made(
            "AWS::AutoScaling::AutoScalingGroup",
            AutoScalingGroupName={"Fn::Sub": "${AWS::StackName}-head"},
            MinSize="1",
            MaxSize="1",
            VPCZoneIdentifier=[ref("Public")],
            LaunchTemplate=launch,
            NotificationConfigurations=[{"TopicARN": ref("Topic"), "NotificationTypes": [LAUNCHED]}],
            Tags=[{"Key": "demo:role", "Value": "head", "PropagateAtLaunch": True}],
        ),
    }


def everything():
    return {**network(), **security(), **storage_and_messages(), **access(), **fleet()}


SECTIONS = {
    "Parameters": {"Image": {"Type": "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>", "Default": IMAGE}},
    "Outputs": {"Address": {"Value": ref("NatAddress")}, "Outcome": {"Value": att("Ready", "Data")}},
}
GIVEN_PLAIN = {"Capabilities": ["CAPABILITY_IAM"]}
GIVEN = {
    "sections": SECTIONS,
    "Capabilities": ["CAPABILITY_IAM"],
    "Tags": [{"Key": "demo:cluster", "Value": "demo"}],
}
