"""What is left of a cluster is found by its tag and by its name, whatever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from aws_here import AwsHere
from clusters import plan
from fleet_fakes import IMAGE, REGION, forget_resources, name, until
from leftovers import (
    ACCOUNT,
    TAG,
    function,
    group_by,
    launch_template,
    log_group,
    queue,
    removal_role,
    role,
    rule,
    table,
    topic,
    untagged_rule,
)
from moto.ec2.models import ec2_backends
from stack_fakes import Stacks, stacks

from phalanx.aws.inventory import orphans, remains, strays
from phalanx.template.document import build

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
        # Other tests in this process look for whatever has the tag of a cluster.
        forget_resources(made.context.account)


@pytest.fixture
def aws(running) -> AwsHere:
    return AwsHere(running.client)


def test_the_names_are_those_of_the_template():
    document = build(plan(down_after_s=7 * 86400)).to_dict()["Resources"]
    for kind, made in KINDS.items():
        assert set(strays.LOGICAL_IDS[kind]) == {title for title, one in document.items() if one["Type"] == made}
    in_a_region = {title for title, one in document.items() if "Path" in one.get("Properties", {})}
    assert set(strays.LOGICAL_IDS["role"]) == in_a_region


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
        # A new instance is pending for a moment.
        found_now = [line.partition(" (")[0] for line in remains.find(aws, cluster, [])]
        assert found_now == lines
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
        assert [line for look in strays.LOOKS for line in look(aws, "demo")] == []
    finally:
        remove()
