"""What is left of a cluster is found by its tag and by its name, whatever it is."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aws_here import AwsHere
from botocore.exceptions import ClientError
from clusters import plan
from fleet_fakes import IMAGE, REGION, name, until
from moto.ec2.models import ec2_backends
from moto.efs.models import efs_backends
from moto.events.models import events_backends
from stack_fakes import Stacks, stacks

from phalanx.clouds import orphans, remains, strays
from phalanx.clouds.refusals import translate
from phalanx.localcloud import file_systems
from phalanx.template.document import build

ACCOUNT = "123456789012"
TAG = {"Key": "phalanx:cluster", "Value": "demo"}
STACK_TAG = "aws:cloudformation:stack-name"
DAY_S = 24 * 3600.0
LAMBDA = {"Service": "lambda.amazonaws.com"}
TRUST = json.dumps({"Statement": [{"Effect": "Allow", "Principal": LAMBDA, "Action": "sts:AssumeRole"}]})
KINDS = {
    "queue": "AWS::SQS::Queue",
    "table": "AWS::DynamoDB::Table",
    "topic": "AWS::SNS::Topic",
    "log group": "AWS::Logs::LogGroup",
    "function": "AWS::Lambda::Function",
    "rule": "AWS::Events::Rule",
}


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as made:
        yield made


@pytest.fixture
def aws(running) -> AwsHere:
    return AwsHere(running.client)


def test_the_names_are_those_of_the_template():
    document = build(plan(down_after_s=7 * 86400)).to_dict()["Resources"]
    for kind, made in KINDS.items():
        assert set(strays.LOGICAL_IDS[kind]) == {title for title, one in document.items() if one["Type"] == made}
    in_a_region = {title for title, one in document.items() if "Path" in one.get("Properties", {})}
    assert set(strays.LOGICAL_IDS["role"]) == in_a_region


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


def rule(aws: AwsHere, cluster: str, start: str = "", tags: bool = True) -> Callable[[], Any]:
    """Make a rule in moto's model: the API here makes none, because nothing would run it."""
    title, backend = f"{start or cluster}-RemovalRule-0123456789AB", events_backends[ACCOUNT][REGION]
    backend.put_rule(title, scheduled_expression="rate(1 day)", tags=[{**TAG, "Value": cluster}] if tags else [])
    return lambda: backend.delete_rule(title, None)


def untagged_rule(aws: AwsHere, cluster: str) -> Callable[[], Any]:
    """Make one of a stack from the console, which has no tags."""
    return rule(aws, cluster, tags=False)


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
        Tags={TAG["Key"]: cluster} if tags is None else tags,
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
        (removal_role, "role demo-RemovalRole-0000useast1"),
        (function, "function demo-Function-0123456789AB"),
        (rule, "rule demo-RemovalRule-0123456789AB"),
        (untagged_rule, "rule demo-RemovalRule-0123456789AB"),
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


def volume(aws: AwsHere) -> str:
    """Make a volume in moto's model: instances here have disks without one, and the API makes none."""
    return ec2_backends[ACCOUNT][REGION].create_volume(1, "us-east-1a").id


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
    "placement group": lambda aws, *_: aws.call(
        "ec2", "create_placement_group", GroupName=name("together"), Strategy="cluster"
    )["PlacementGroup"]["GroupId"],
    "volume": lambda aws, *_: volume(aws),
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
        lines = [f"{kind} {_shown(aws, found)}"] if value == cluster else []
        assert [line.removesuffix(" (running)") for line in remains.find(aws, cluster, [])] == lines
    assert cluster in orphans.clusters(aws)


def _shown(aws: AwsHere, resource: str) -> str:
    """Return what a resource is called: a placement group is deleted by its name."""
    if not resource.startswith("pg-"):
        return resource
    return aws.call("ec2", "describe_placement_groups", GroupIds=[resource])["PlacementGroups"][0]["GroupName"]


def test_a_cluster_of_the_same_name_in_another_region_is_not_left_behind(aws: AwsHere) -> None:
    """Its role and its instance profile have the same tag and the same form of name, because IAM has no regions."""
    remove = role(aws, "demo")
    try:
        assert list(strays.find(aws, "demo")) == []
    finally:
        remove()


@pytest.mark.parametrize(
    "plant",
    [
        *(queue, table, topic, log_group, launch_template, group_by("{}-head", [TAG])),
        *(removal_role, function, rule, untagged_rule, file_system),
    ],
)
def test_clusters_without_a_stack_are_found_whatever_is_left(aws, plant):
    cluster = name("orphan")
    remove = plant(aws, cluster)
    try:
        (found,) = [one for one in orphans.find(aws) if one.cluster == cluster]
        assert found.stack == "" and len(found.lines) == 1
    finally:
        remove()
    until(lambda: cluster not in [one.cluster for one in orphans.find(aws)], f"the end of {cluster}")


@pytest.mark.parametrize("plant", [removal_role, function, rule])
def test_a_cluster_whose_name_is_shortened_in_names_is_found_by_its_tag(aws, plant):
    cluster = name("a-cluster-with-a-long-name")
    remove = plant(aws, cluster, start=cluster[:-5])
    try:
        assert len(remains.find(aws, cluster, [])) == 1
        assert cluster in orphans.clusters(aws) and cluster[:-5] not in orphans.clusters(aws)
    finally:
        remove()


@pytest.mark.parametrize("has_tag", [True, False], ids=["whole name in a tag", "no tag"])
def test_a_function_of_a_stack_of_somebody_else_is_no_orphan(aws: AwsHere, has_tag: bool):
    """Its logical id is Function, too, and CloudFormation has shortened its stack's name: no stack has that one."""
    stack = name("serverless-image-handler-production")
    remove = function(aws, stack, start=stack[:-5], tags={STACK_TAG: stack} if has_tag else {})
    try:
        assert not {stack, stack[:-5]} & orphans.clusters(aws)
        for cluster in (stack, stack[:-5]):
            assert remains.find(aws, cluster, []) == [], "`down` would wait for it"
    finally:
        remove()


@pytest.mark.parametrize("proof", [rule, removal_role])
def test_a_function_without_the_tag_is_a_clusters_if_its_stack_made_a_removal(aws: AwsHere, proof):
    cluster = name("a-cluster-from-the-console")
    removes = [function(aws, cluster, start=cluster[:-5], tags={STACK_TAG: cluster}), proof(aws, cluster)]
    try:
        assert cluster in orphans.clusters(aws) and cluster[:-5] not in orphans.clusters(aws)
        assert f"function {cluster[:-5]}-Function-0123456789AB" in remains.find(aws, cluster, [])
    finally:
        for remove in removes:
            remove()


class Refusing(AwsHere):
    """AWS for a user whose policy does not allow these operations."""

    def __init__(self, clients: Callable[[str], Any], *operations: str) -> None:
        super().__init__(clients)
        self._refused = operations

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        if operation not in self._refused:
            return super().call(service, operation, **arguments)
        error = ClientError({"Error": {"Code": "AccessDeniedException", "Message": "not authorized"}}, operation)
        raise translate(error, f"{service}:{operation}", "AWS") from error


def test_a_policy_of_a_version_that_had_no_rules_is_enough_to_prove_a_cluster_gone(running):
    assert remains.find(Refusing(running.client, "list_rules"), name("gone"), []) == []


@pytest.mark.parametrize(
    ("plant", "operation"),
    [(function, "list_tags"), (rule, "list_tags_for_resource"), (removal_role, "list_role_tags")],
)
def test_what_has_tags_that_the_user_may_not_read_is_somebody_elses(aws, running, plant, operation):
    cluster, own = name("secret"), name("own")
    removes = [plant(aws, cluster), queue(aws, own)]
    refusing = Refusing(running.client, operation)
    try:
        found = [one.cluster for one in orphans.find(refusing)]
        assert own in found and cluster not in found
        assert remains.find(refusing, cluster, []) == []
    finally:
        for remove in removes:
            remove()


@pytest.mark.parametrize(("age_s", "is_named"), [(DAY_S - 60, False), (DAY_S + 60, True)])
def test_a_file_system_is_old_enough_to_have_been_counted(aws: AwsHere, age_s: float, is_named: bool):
    cluster = name("young")
    remove = file_system(aws, cluster, age_s)
    try:
        assert (cluster in [one.cluster for one in orphans.find(aws)]) == is_named
    finally:
        remove()


def test_a_file_system_that_was_counted_when_it_was_new_may_have_data(aws: AwsHere, monkeypatch):
    cluster = name("stale")
    remove = file_system(aws, cluster, age_s=9 * DAY_S)
    (found,) = [one for one in aws.pages("efs", "describe_file_systems", "FileSystems") if _is_of(one, cluster)]
    made = efs_backends[ACCOUNT][REGION].file_systems_by_id[found["FileSystemId"]]
    counted = {"Value": 6144, "Timestamp": made.creation_time + 3600}
    monkeypatch.setattr(type(made), "size_in_bytes", property(lambda _: counted))
    try:
        assert cluster not in [one.cluster for one in orphans.find(aws)]
    finally:
        remove()


def test_a_file_system_with_data_or_in_use_is_not_left_behind(aws, running):
    cluster = name("keeps")
    remove = file_system(aws, cluster)
    (found,) = [one for one in aws.pages("efs", "describe_file_systems", "FileSystems") if _is_of(one, cluster)]
    where = file_systems.directory(running.context.state, found["FileSystemId"])
    try:
        assert found["SizeInBytes"]["Value"] == 6144
        (where / "data").touch()
        assert cluster not in [one.cluster for one in orphans.find(aws)]
        (where / "data").unlink()
        assert cluster in [one.cluster for one in orphans.find(aws)]
        assert remains.find(aws, cluster, []) == [], "`down` decides about it by the stack"
        vpc = aws.call("ec2", "create_vpc", CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        subnet = aws.call("ec2", "create_subnet", VpcId=vpc, CidrBlock="10.0.1.0/24")["Subnet"]["SubnetId"]
        given = {"FileSystemId": found["FileSystemId"], "SubnetId": subnet}
        target = aws.call("efs", "create_mount_target", **given)["MountTargetId"]
        assert cluster not in [one.cluster for one in orphans.find(aws)]
        aws.call("efs", "delete_mount_target", MountTargetId=target)
    finally:
        remove()


def _is_of(found: dict[str, Any], cluster: str) -> bool:
    return {**TAG, "Value": cluster} in found["Tags"]


def test_a_failed_stack_of_somebody_else_is_no_cluster(aws, running):
    own = {"Type": "AWS::Logs::LogGroup"}
    wrong = {
        "Type": "AWS::EC2::Subnet",
        "DependsOn": "LogGroup",
        "Properties": {"VpcId": "vpc-0", "CidrBlock": "10.0.0.0/24"},
    }
    stack = running.create({"LogGroup": own, "Wrong": wrong}, OnFailure="DO_NOTHING")
    assert running.settled(stack) == "CREATE_FAILED"
    assert running.describe(stack)["StackName"] in orphans.clusters(aws)
    assert running.describe(stack)["StackName"] not in [one.cluster for one in orphans.find(aws)]
    running.deleted(stack)
