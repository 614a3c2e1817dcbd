"""The index of tags over all services: what GetResources shows, in pages, what it lacks, and how late it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from emr_fakes import Emr
from fleet_fakes import IMAGE, REGION, ZONE, forget_resources, name
from stack_fakes import Stacks, stacks

from localcloud.api.tag_index import GONE_LATE_S, NEW_LATE_S, TOKEN_VALID_S
from localcloud.weather.forecast import Forecast

KEY = "of"
TRUST = json.dumps({"Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}]})


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running
        forget_resources(running.context.account)


@pytest.fixture
def whose() -> str:
    return name("mine")


def page(cloud: Stacks, **given: Any) -> dict[str, Any]:
    return cloud.client("resourcegroupstaggingapi").get_resources(**given)


def found(cloud: Stacks, whose: str, **given: Any) -> list[str]:
    """Return the ARNs of what has the tag, without the account's part."""
    chosen = page(cloud, TagFilters=[{"Key": KEY, "Values": [whose]}], **given)
    return [one["ResourceARN"] for one in chosen["ResourceTagMappingList"]]


def queues(cloud: Stacks, whose: str, count: int) -> list[str]:
    api = cloud.client("sqs")
    return [api.create_queue(QueueName=name("queue"), tags={KEY: whose})["QueueUrl"] for _ in range(count)]


def refused(cloud: Stacks, **given: Any) -> str:
    with pytest.raises(ClientError) as info:
        page(cloud, **given)
    return info.value.response["Error"]["Code"]


def test_what_has_the_tag_is_shown_whatever_its_service(cloud: Stacks, whose: str):
    tags = [{"Key": KEY, "Value": whose}]
    ec2 = cloud.client("ec2")

    def tagged(kind: str) -> Any:
        return [{"ResourceType": kind, "Tags": tags}]

    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=tagged("vpc"))["Vpc"]["VpcId"]
    made = [
        f"vpc/{vpc}",
        "elastic-ip/" + ec2.allocate_address(Domain="vpc", TagSpecifications=tagged("elastic-ip"))["AllocationId"],
        "key-pair/" + ec2.create_key_pair(KeyName=whose, TagSpecifications=tagged("key-pair"))["KeyPairId"],
        "placement-group/"
        + ec2.create_placement_group(GroupName=whose, Strategy="cluster", TagSpecifications=tagged("placement-group"))[
            "PlacementGroup"
        ]["GroupId"],
        "vpc-endpoint/"
        + ec2.create_vpc_endpoint(
            VpcId=vpc, ServiceName=f"com.amazonaws.{REGION}.s3", TagSpecifications=tagged("vpc-endpoint")
        )["VpcEndpoint"]["VpcEndpointId"],
        "launch-template/"
        + ec2.create_launch_template(
            LaunchTemplateName=whose,
            LaunchTemplateData={"ImageId": IMAGE, "InstanceType": "c5.large"},
            TagSpecifications=tagged("launch-template"),
        )["LaunchTemplate"]["LaunchTemplateId"],
        "stack/"
        + cloud.made(
            {
                "Queue": {"Type": "AWS::SQS::Queue"},
                "Topic": {"Type": "AWS::SNS::Topic"},
                "Log": {"Type": "AWS::Logs::LogGroup"},
                "Files": {"Type": "AWS::EFS::FileSystem"},
                "Rule": {"Type": "AWS::Events::Rule", "Properties": {"ScheduleExpression": "rate(1 day)"}},
            },
            Tags=tags,
        ).partition(":stack/")[2],
    ]
    shown = found(cloud, whose)
    assert set(made) <= {one.split(":", 5)[5] for one in shown}
    assert {"sqs", "sns", "logs", "elasticfilesystem", "events", "cloudformation"} <= {
        one.split(":")[2] for one in shown
    }
    assert shown == sorted(set(shown))
    only = found(cloud, whose, ResourceTypeFilters=["ec2:vpc", "logs:log-group", "sqs"])
    assert [one.split(":")[2] for one in only] == ["ec2", "logs", "sqs"]


def test_a_cluster_of_emr_is_shown_while_it_lives(cloud: Stacks, whose: str):
    emr = Emr(cloud)
    made = emr.ready(1, Tags=[{"Key": KEY, "Value": whose}])
    assert f"arn:aws:elasticmapreduce:{REGION}:{cloud.context.account}:cluster/{made}" in found(cloud, whose)
    emr.api.terminate_job_flows(JobFlowIds=[made])
    emr.ended(made)
    assert not [one for one in found(cloud, whose) if ":elasticmapreduce:" in one]


def test_roles_and_auto_scaling_groups_are_not_in_it(cloud: Stacks, whose: str):
    tags = [{"Key": KEY, "Value": whose}]
    cloud.client("iam").create_role(RoleName=whose, AssumeRolePolicyDocument=TRUST, Tags=tags)
    cloud.client("iam").create_instance_profile(InstanceProfileName=whose, Tags=tags)
    ec2 = cloud.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    made = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.1.0/24", AvailabilityZone=ZONE)["Subnet"]["SubnetId"]
    data = {"ImageId": IMAGE, "InstanceType": "c5.large"}
    ec2.create_launch_template(LaunchTemplateName=whose, LaunchTemplateData=data)
    cloud.client("autoscaling").create_auto_scaling_group(
        AutoScalingGroupName=whose,
        MinSize=0,
        MaxSize=0,
        VPCZoneIdentifier=made,
        LaunchTemplate={"LaunchTemplateName": whose, "Version": "1"},
        Tags=[{**tags[0], "PropagateAtLaunch": False}],
    )
    assert found(cloud, whose) == []


def test_pages_have_at_most_as_many_as_asked_for_and_the_last_has_no_token(cloud: Stacks, whose: str):
    queues(cloud, whose, 5)
    chosen = {"TagFilters": [{"Key": KEY, "Values": [whose]}], "ResourcesPerPage": 2}
    sizes, arns, token = [], [], ""
    while True:
        answer = page(cloud, **chosen, PaginationToken=token)
        sizes.append(len(answer["ResourceTagMappingList"]))
        arns += [one["ResourceARN"] for one in answer["ResourceTagMappingList"]]
        token = answer["PaginationToken"]
        if not token:
            break
    assert sizes == [2, 2, 1]
    assert arns == found(cloud, whose)


def test_a_page_has_no_more_tags_than_asked_for(cloud: Stacks, whose: str):
    api = cloud.client("sqs")
    for _ in range(3):
        api.create_queue(QueueName=name("queue"), tags={KEY: whose, **{f"k{n}": "v" for n in range(48)}})
    first = page(cloud, TagFilters=[{"Key": KEY, "Values": [whose]}], TagsPerPage=100)
    assert len(first["ResourceTagMappingList"]) == 2
    assert first["PaginationToken"]


def test_a_token_expires_after_a_quarter_of_an_hour(cloud: Stacks, whose: str):
    queues(cloud, whose, 2)
    chosen: dict[str, Any] = {"TagFilters": [{"Key": KEY, "Values": [whose]}], "ResourcesPerPage": 1}
    token = page(cloud, **chosen)["PaginationToken"]
    cloud.clock.advance(TOKEN_VALID_S + 1)
    assert refused(cloud, **chosen, PaginationToken=token) == "PaginationTokenExpiredException"


@pytest.mark.parametrize(
    "given",
    [
        {"ResourcesPerPage": 0},
        {"ResourcesPerPage": 101},
        {"TagsPerPage": 99},
        {"PaginationToken": "nonsense"},
        {"ResourceARNList": ["arn:aws:sqs:us-east-1:123456789012:q"], "ResourcesPerPage": 5},
    ],
)
def test_what_aws_refuses_is_refused(cloud: Stacks, given: dict[str, Any]):
    assert refused(cloud, **given) == "InvalidParameterException"


def test_only_who_has_the_right_may_ask(cloud: Stacks):
    role = name("role")
    allow = {"Effect": "Allow", "Action": "ec2:DescribeTags", "Resource": "*"}
    iam = cloud.client("iam")
    iam.create_role(RoleName=role, AssumeRolePolicyDocument=TRUST)
    iam.put_role_policy(
        RoleName=role, PolicyName="p", PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [allow]})
    )
    arn = f"arn:aws:iam::{cloud.context.account}:role/{role}"
    session = cloud.client("sts").assume_role(RoleArn=arn, RoleSessionName="me")["Credentials"]
    with pytest.raises(ClientError, match=r"AccessDenied.*not authorized to perform: tag:GetResources"):
        cloud.client_of("resourcegroupstaggingapi", session).get_resources()


def test_in_bad_weather_the_new_comes_late_and_the_deleted_goes_late(cloud: Stacks, whose: str):
    cloud.context.weather.change(Forecast(7, ("tag-index",)))
    try:
        (url,) = queues(cloud, whose, 1)
        assert found(cloud, whose) == []
        cloud.clock.advance(NEW_LATE_S[1])
        assert len(found(cloud, whose)) == 1
        cloud.client("sqs").delete_queue(QueueUrl=url)
        assert len(found(cloud, whose)) == 1, "it is a ghost"
        cloud.clock.advance(GONE_LATE_S[1])
        assert found(cloud, whose) == []
        assert any("tag-index" in event for event in cloud.context.weather.events)
    finally:
        cloud.context.weather.change(None)
