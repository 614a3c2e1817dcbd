"""What may be left of a cluster: each function makes one such resource, and returns what removes it.

They have the tags that `up` gives to a stack, and CloudFormation to its resources, unless others are given.
"""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Callable
from typing import Any

from aws_here import AwsHere
from fleet_fakes import IMAGE, REGION, name
from moto.efs.models import efs_backends
from moto.events.models import events_backends

ACCOUNT = "123456789012"
TAG = {"Key": "phalanx:cluster", "Value": "demo"}
DAY_S = 24 * 3600.0
LAMBDA = {"Service": "lambda.amazonaws.com"}
TRUST = json.dumps({"Statement": [{"Effect": "Allow", "Principal": LAMBDA, "Action": "sts:AssumeRole"}]})


def _tags(cluster: str, tags: dict[str, str] | None) -> dict[str, str]:
    return {TAG["Key"]: cluster} if tags is None else tags


def _as_list(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def queue(aws: AwsHere, cluster: str, tags: dict[str, str] | None = None) -> Callable[[], Any]:
    title = f"{cluster}-HeadQueue-0123456789ab"
    url = aws.call("sqs", "create_queue", QueueName=title, tags=_tags(cluster, tags))["QueueUrl"]
    return lambda: aws.call("sqs", "delete_queue", QueueUrl=url)


def table(aws: AwsHere, cluster: str, tags: dict[str, str] | None = None) -> Callable[[], Any]:
    title = f"{cluster}-RosterTable-0123456789AB"
    aws.call(
        "dynamodb",
        "create_table",
        TableName=title,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "item", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "item", "AttributeType": "S"}],
        Tags=_as_list(_tags(cluster, tags)),
    )
    return lambda: aws.call("dynamodb", "delete_table", TableName=title)


def topic(aws: AwsHere, cluster: str, tags: dict[str, str] | None = None) -> Callable[[], Any]:
    given = {"Name": f"{cluster}-FleetTopic-0123456789AB", "Tags": _as_list(_tags(cluster, tags))}
    arn = aws.call("sns", "create_topic", **given)["TopicArn"]
    return lambda: aws.call("sns", "delete_topic", TopicArn=arn)


def log_group(aws: AwsHere, cluster: str, tags: dict[str, str] | None = None) -> Callable[[], Any]:
    title = f"{cluster}-LogGroup-0123456789AB"
    given = _tags(cluster, tags)
    aws.call("logs", "create_log_group", logGroupName=title, **({"tags": given} if given else {}))
    return lambda: aws.call("logs", "delete_log_group", logGroupName=title)


def role(aws: AwsHere, cluster: str) -> Callable[[], Any]:
    title = f"{cluster}-HeadRole-0123456789AB"
    tags = [{**TAG, "Value": cluster}]
    aws.call("iam", "create_role", RoleName=title, AssumeRolePolicyDocument=TRUST, Tags=tags)
    return lambda: aws.call("iam", "delete_role", RoleName=title)


def removal_role(aws: AwsHere, cluster: str, start: str = "") -> Callable[[], Any]:
    """Make what outlives the stack of a forgotten cluster; another region's has another path.

    `start`: how its name starts, if CloudFormation has shortened the cluster's in it.
    """
    tags = [{**TAG, "Value": cluster}]
    for region in ("us-east-1", "eu-west-1"):
        given = {"RoleName": _of_region(start or cluster, region), "Path": f"/phalanx/{region}/", "Tags": tags}
        aws.call("iam", "create_role", AssumeRolePolicyDocument=TRUST, **given)

    def remove() -> None:
        for region in ("us-east-1", "eu-west-1"):
            aws.call("iam", "delete_role", RoleName=_of_region(start or cluster, region))

    return remove


def _of_region(start: str, region: str) -> str:
    return f"{start}-RemovalRole-0000{region.replace('-', '')}"


def rule(aws: AwsHere, cluster: str, start: str = "", tags: dict[str, str] | None = None) -> Callable[[], Any]:
    """Make a rule in moto's model: the API here makes none, because nothing would run it."""
    title, backend = f"{start or cluster}-RemovalRule-0123456789AB", events_backends[ACCOUNT][REGION]
    backend.put_rule(title, scheduled_expression="rate(1 day)", tags=_as_list(_tags(cluster, tags)))
    return lambda: backend.delete_rule(title, None)


def untagged_rule(aws: AwsHere, cluster: str) -> Callable[[], Any]:
    """Make one of a stack from the console, of whose tags we know nothing."""
    return rule(aws, cluster, tags={})


def file_system(aws: AwsHere, cluster: str, age_s: float = 2 * DAY_S) -> Callable[[], Any]:
    made = aws.call("efs", "create_file_system", CreationToken=name("token"), Tags=[{**TAG, "Value": cluster}])
    # EFS counts by the clock of the test's cloud.
    now_s = min(time.time(), made["SizeInBytes"]["Timestamp"].timestamp())
    efs_backends[ACCOUNT][REGION].file_systems_by_id[made["FileSystemId"]].creation_time = now_s - age_s
    return lambda: aws.call("efs", "delete_file_system", FileSystemId=made["FileSystemId"])


def function(aws: AwsHere, cluster: str, start: str = "", tags: dict[str, str] | None = None) -> Callable[[], Any]:
    title, made = f"{start or cluster}-Function-0123456789AB", io.BytesIO()
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
        Tags=_tags(cluster, tags),
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
