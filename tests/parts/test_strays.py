"""What is left of a cluster is found by its tag and by its name, whatever it is."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aws_here import AwsHere
from fleet_fakes import IMAGE, name, until
from plans import default_document
from stack_fakes import Stacks, stacks

from phalanx.clouds import orphans, remains, strays

TAG = {"Key": "phalanx:cluster", "Value": "demo"}
LAMBDA = {"Service": "lambda.amazonaws.com"}
TRUST = json.dumps({"Statement": [{"Effect": "Allow", "Principal": LAMBDA, "Action": "sts:AssumeRole"}]})
KINDS = {
    "queue": "AWS::SQS::Queue",
    "table": "AWS::DynamoDB::Table",
    "topic": "AWS::SNS::Topic",
    "log group": "AWS::Logs::LogGroup",
}


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as made:
        yield made


@pytest.fixture
def aws(running) -> AwsHere:
    return AwsHere(running.client)


def test_the_names_are_those_of_the_template():
    document = default_document()["Resources"]
    for kind, made in KINDS.items():
        assert set(strays.LOGICAL_IDS[kind]) == {title for title, one in document.items() if one["Type"] == made}


def queue(aws: AwsHere, cluster: str) -> Callable[[], Any]:
    url = aws.call("sqs", "create_queue", QueueName=f"{cluster}-HeadQueue-0123456789ab")["QueueUrl"]
    return lambda: aws.call("sqs", "delete_queue", QueueUrl=url)


def table(aws: AwsHere, cluster: str) -> Callable[[], Any]:
    title = f"{cluster}-RosterTable-0123456789AB"
    aws.call(
        "dynamodb",
        "create_table",
        TableName=title,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "item", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "item", "AttributeType": "S"}],
    )
    return lambda: aws.call("dynamodb", "delete_table", TableName=title)


def topic(aws: AwsHere, cluster: str) -> Callable[[], Any]:
    arn = aws.call("sns", "create_topic", Name=f"{cluster}-FleetTopic-0123456789AB")["TopicArn"]
    return lambda: aws.call("sns", "delete_topic", TopicArn=arn)


def log_group(aws: AwsHere, cluster: str) -> Callable[[], Any]:
    title = f"{cluster}-LogGroup-0123456789AB"
    aws.call("logs", "create_log_group", logGroupName=title)
    return lambda: aws.call("logs", "delete_log_group", logGroupName=title)


def role(aws: AwsHere, cluster: str) -> Callable[[], Any]:
    title = f"{cluster}-HeadRole-0123456789AB"
    tags = [{**TAG, "Value": cluster}]
    aws.call("iam", "create_role", RoleName=title, AssumeRolePolicyDocument=TRUST, Tags=tags)
    return lambda: aws.call("iam", "delete_role", RoleName=title)


def removal_role(aws: AwsHere, cluster: str) -> Callable[[], Any]:
    """Make what outlives the stack of a forgotten cluster; another region's has another path."""
    tags = [{**TAG, "Value": cluster}]
    for region in ("us-east-1", "eu-west-1"):
        given = {"RoleName": f"{cluster}-RemovalRole-{region}", "Path": f"/phalanx/{region}/", "Tags": tags}
        aws.call("iam", "create_role", AssumeRolePolicyDocument=TRUST, **given)

    def remove() -> None:
        for region in ("us-east-1", "eu-west-1"):
            aws.call("iam", "delete_role", RoleName=f"{cluster}-RemovalRole-{region}")

    return remove


def function(aws: AwsHere, cluster: str) -> Callable[[], Any]:
    title, made = f"{cluster}-Function-0123456789AB", io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("index.py", "def handler(event, context): pass")
    remove = role(aws, cluster)
    arn = aws.call("iam", "get_role", RoleName=f"{cluster}-HeadRole-0123456789AB")["Role"]["Arn"]
    aws.call(
        "lambda",
        "create_function",
        FunctionName=title,
        Runtime="python3.12",
        Handler="index.handler",
        Role=arn,
        Code={"ZipFile": made.getvalue()},
        Tags={TAG["Key"]: cluster},
    )
    remove()
    return lambda: aws.call("lambda", "delete_function", FunctionName=title)


def launch_template(aws: AwsHere, cluster: str) -> Callable[[], Any]:
    tags = [{"ResourceType": "launch-template", "Tags": [{**TAG, "Value": cluster}]}]
    data = {"ImageId": IMAGE, "InstanceType": "c5.large"}
    made = aws.call(
        "ec2",
        "create_launch_template",
        LaunchTemplateName=name("template"),
        LaunchTemplateData=data,
        TagSpecifications=tags,
    )
    template = made["LaunchTemplate"]["LaunchTemplateId"]
    return lambda: aws.call("ec2", "delete_launch_template", LaunchTemplateId=template)


def group_by(title: str, tags: list[dict[str, Any]]) -> Callable[[AwsHere, str], Callable[[], Any]]:
    """Return what plants an Auto Scaling group of this name."""

    def plant(aws: AwsHere, cluster: str) -> Callable[[], Any]:
        vpc = aws.call("ec2", "create_vpc", CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        made = aws.call("ec2", "create_subnet", VpcId=vpc, CidrBlock="10.0.1.0/24", AvailabilityZone="us-east-1a")
        remove = launch_template(aws, "another")
        (template,) = list(
            aws.pages(
                "ec2",
                "describe_launch_templates",
                "LaunchTemplates",
                Filters=[{"Name": f"tag:{TAG['Key']}", "Values": ["another"]}],
            )
        )
        aws.call(
            "autoscaling",
            "create_auto_scaling_group",
            AutoScalingGroupName=title.format(cluster),
            MinSize=0,
            MaxSize=0,
            VPCZoneIdentifier=made["Subnet"]["SubnetId"],
            LaunchTemplate={"LaunchTemplateId": template["LaunchTemplateId"], "Version": "1"},
            Tags=[{**tag, "Value": cluster, "PropagateAtLaunch": True} for tag in tags],
        )
        remove()
        delete = {"AutoScalingGroupName": title.format(cluster), "ForceDelete": True}
        return lambda: aws.call("autoscaling", "delete_auto_scaling_group", **delete)

    return plant


@pytest.mark.parametrize(
    ("plant", "line"),
    [
        (queue, "queue demo-HeadQueue-0123456789ab"),
        (table, "table demo-RosterTable-0123456789AB"),
        (topic, "topic demo-FleetTopic-0123456789AB"),
        (log_group, "log group demo-LogGroup-0123456789AB"),
        (removal_role, "role demo-RemovalRole-us-east-1"),
        (function, "function demo-Function-0123456789AB"),
        (launch_template, "launch template lt-"),
        (group_by("{}-workers", []), "Auto Scaling group demo-workers"),
        (group_by("renamed", [TAG]), "Auto Scaling group renamed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_leftover_is_named_until_it_is_gone(aws, plant, line):
    of_a_neighbour = [plant(aws, "demo-2")] if "renamed" not in line else []
    remove = plant(aws, "demo")
    (found,) = remains.find(aws, "demo", [])
    assert found.startswith(line)
    remove()
    until(
        lambda: remains.find(aws, "demo", []) == [], f"the end of {line}"
    )  # Auto Scaling deletes later than it answers
    for remove in of_a_neighbour:
        remove()


IN_VPC: dict[str, Callable[[AwsHere, str, str], str]] = {
    "VPC": lambda aws, *_: aws.call("ec2", "create_vpc", CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"],
    "route table": lambda aws, vpc, _: aws.call("ec2", "create_route_table", VpcId=vpc)["RouteTable"]["RouteTableId"],
    "subnet": lambda _aws, _vpc, subnet: subnet,
    "internet gateway": lambda aws, *_: aws.call("ec2", "create_internet_gateway")["InternetGateway"][
        "InternetGatewayId"
    ],
    "security group": lambda aws, vpc, _: aws.call(
        "ec2", "create_security_group", GroupName=name("g"), Description="d", VpcId=vpc
    )["GroupId"],
    "NAT gateway": lambda aws, _, subnet: aws.call(
        "ec2", "create_nat_gateway", SubnetId=subnet, ConnectivityType="private"
    )["NatGateway"]["NatGatewayId"],
    "VPC endpoint": lambda aws, vpc, _: aws.call(
        "ec2", "create_vpc_endpoint", VpcId=vpc, ServiceName="com.amazonaws.us-east-1.s3", RouteTableIds=[]
    )["VpcEndpoint"]["VpcEndpointId"],
    "Elastic IP": lambda aws, *_: aws.call("ec2", "allocate_address", Domain="vpc")["AllocationId"],
    "instance": lambda aws, _, subnet: aws.call(
        "ec2", "run_instances", ImageId=IMAGE, InstanceType="c5.large", SubnetId=subnet, MinCount=1, MaxCount=1
    )["Instances"][0]["InstanceId"],
}


@pytest.mark.parametrize("kind", IN_VPC)
def test_what_has_the_tag_of_a_cluster_is_named_without_its_stack(aws: AwsHere, kind: str):
    vpc = aws.call("ec2", "create_vpc", CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    made = aws.call("ec2", "create_subnet", VpcId=vpc, CidrBlock="10.0.1.0/24", AvailabilityZone="us-east-1a")
    found = IN_VPC[kind](aws, vpc, made["Subnet"]["SubnetId"])
    cluster = name("tagged")
    for value in (f"{cluster}-2", cluster):
        aws.call("ec2", "create_tags", Resources=[found], Tags=[{**TAG, "Value": value}])
        lines = [f"{kind} {found}"] if value == cluster else []
        assert [line.removesuffix(" (running)") for line in remains.find(aws, cluster, [])] == lines


def test_a_cluster_of_the_same_name_in_another_region_is_not_left_behind(aws: AwsHere) -> None:
    """Its role and its instance profile have the same tag and the same form of name, because IAM has no regions."""
    remove = role(aws, "demo")
    try:
        assert list(strays.find(aws, "demo")) == []
    finally:
        remove()


@pytest.mark.parametrize("plant", [queue, table, topic, log_group, launch_template, group_by("{}-head", [TAG])])
def test_clusters_without_a_stack_are_found_whatever_is_left(aws, plant):
    cluster = name("orphan")
    remove = plant(aws, cluster)
    try:
        (found,) = [one for one in orphans.find(aws) if one.cluster == cluster]
        assert found.stack == "" and len(found.lines) == 1
    finally:
        remove()
    until(lambda: cluster not in [one.cluster for one in orphans.find(aws)], f"the end of {cluster}")
