"""A stack like AWS's deep learning template: everything is created, and nothing remains after its deletion."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import fleet_fakes
import pytest
import wsgi_clients
from ancestor_stack import (
    GIVEN,
    GIVEN_PLAIN,
    SECTIONS,
    TRUST,
    access,
    everything,
    made,
    network,
    ref,
    security,
    storage_and_messages,
)
from botocore.exceptions import ClientError
from fleet_fakes import ADMINISTRATOR, until
from stack_fakes import Stacks, stacks

from localcloud.api import partitions
from localcloud.cloudformation import schemas
from localcloud.cloudformation.errors import ResourceFailed
from localcloud.cloudformation.resources import TYPES

HTTPS = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "CidrIp": "10.0.0.0/8"}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running


def inventory(cloud: Stacks) -> dict[str, set[str]]:
    """Name all resources by type, including the account's default ones."""
    ec2, iam = cloud.client("ec2"), cloud.client("iam")
    return {
        "vpcs": {item["VpcId"] for item in ec2.describe_vpcs()["Vpcs"]},
        "subnets": {item["SubnetId"] for item in ec2.describe_subnets()["Subnets"]},
        "route tables": {item["RouteTableId"] for item in ec2.describe_route_tables()["RouteTables"]},
        "gateways": {item["InternetGatewayId"] for item in ec2.describe_internet_gateways()["InternetGateways"]},
        "nat gateways": {item["NatGatewayId"] for item in ec2.describe_nat_gateways()["NatGateways"]},
        "addresses": {item["AllocationId"] for item in ec2.describe_addresses()["Addresses"]},
        "security groups": {item["GroupId"] for item in ec2.describe_security_groups()["SecurityGroups"]},
        "interfaces": {item["NetworkInterfaceId"] for item in ec2.describe_network_interfaces()["NetworkInterfaces"]},
        "acls": {item["NetworkAclId"] for item in ec2.describe_network_acls()["NetworkAcls"]},
        "launch templates": {item["LaunchTemplateId"] for item in ec2.describe_launch_templates()["LaunchTemplates"]},
        "roles": {item["RoleName"] for item in iam.list_roles()["Roles"]},
        "profiles": {item["InstanceProfileName"] for item in iam.list_instance_profiles()["InstanceProfiles"]},
        "file systems": {item["FileSystemId"] for item in cloud.client("efs").describe_file_systems()["FileSystems"]},
        "files": {path.name for path in cloud.context.state.glob("efs/*")},
        "tables": set(cloud.client("dynamodb").list_tables()["TableNames"]),
        "queues": set(cloud.client("sqs").list_queues().get("QueueUrls", [])),
        "topics": {item["TopicArn"] for item in cloud.client("sns").list_topics()["Topics"]},
        "subscriptions": {i["SubscriptionArn"] for i in cloud.client("sns").list_subscriptions()["Subscriptions"]},
        "functions": {item["FunctionName"] for item in cloud.client("lambda").list_functions()["Functions"]},
        "logs": {item["logGroupName"] for item in cloud.client("logs").describe_log_groups()["logGroups"]},
        "groups": {
            item["AutoScalingGroupName"]
            for item in cloud.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
        },
    }


def since(before: dict[str, set[str]], cloud: Stacks) -> dict[str, set[str]]:
    """Return what is new. What other tests of this process have left may go meanwhile."""
    return {kind: found - before[kind] for kind, found in inventory(cloud).items()}


def test_all_of_it_comes_up_and_nothing_of_it_remains(cloud):
    before = inventory(cloud)
    stack = cloud.create(everything(), **GIVEN)
    until(lambda: cloud.status(stack, "Group") == "CREATE_COMPLETE")
    assert cloud.engine.signal_handle(cloud.physical(stack, "Handle"), _success())
    assert cloud.settled(stack) == "CREATE_COMPLETE", cloud.history(stack)
    made = since(before, cloud)
    assert all(made.values()), made
    assert cloud.deleted(stack) == "DELETE_COMPLETE", [event for event in cloud.history(stack) if event[2]]
    left = since(before, cloud)
    assert not any(left.values()), left


def _success():
    from localcloud.cloudformation.signals import Signal

    return Signal("me", "SUCCESS", '{"requested":4}')


def test_a_group_is_created_when_its_machines_are_in_service_and_gone_when_they_are(cloud):
    cloud.runner.gate.clear()
    stack = cloud.create(everything(), **GIVEN)
    cloud.engine.idle()
    assert cloud.describe(stack)["StackStatus"] == "CREATE_IN_PROGRESS"
    assert ("Group", "CREATE_COMPLETE", "") not in cloud.history(stack)
    cloud.runner.gate.set()
    until(lambda: cloud.status(stack, "Group") == "CREATE_COMPLETE")
    (machine,) = [
        machine for machine in list(cloud.runner.booted.values()) if machine.vpc_id == cloud.physical(stack, "Vpc")
    ]
    assert list(machine.file_systems) == [cloud.physical(stack, "Files")]
    name = cloud.describe(stack)["StackName"]
    assert machine.user_data.decode() == f"#!/bin/sh\necho {name} {cloud.physical(stack, 'Handle')}"
    described = cloud.client("ec2").describe_instances(InstanceIds=[machine.instance_id])
    tags = {tag["Key"]: tag["Value"] for tag in described["Reservations"][0]["Instances"][0]["Tags"]}
    assert (tags["demo:cluster"], tags["demo:role"]) == ("demo", "head")
    assert cloud.deleted(stack) == "DELETE_COMPLETE", [event for event in cloud.history(stack) if event[2]]
    assert machine.instance_id in [killed for killed, _ in cloud.runner.killed]


def test_a_group_that_cannot_launch_fails_with_auto_scalings_words(cloud):
    cloud.runner.broken = "no room"
    resources = everything()
    del resources["Ready"]  # it would time out while the clock advances
    try:
        stack = cloud.create(resources, **{**GIVEN, "sections": {**SECTIONS, "Outputs": {}}})
        cloud.engine.idle()
        until(lambda: cloud.clock.advance(60) or cloud.status(stack, "Group") != "CREATE_IN_PROGRESS")
        assert cloud.settled(stack) == "ROLLBACK_COMPLETE", [one for one in cloud.history(stack) if "FAILED" in one[1]]
    finally:
        cloud.runner.broken = ""
    assert "no room" in cloud.reason(stack, "Group", "CREATE_FAILED")


def test_a_group_whose_topic_refuses_the_first_notification_is_not_left_behind(cloud):
    """SNS takes subjects of 100 characters, and the group's name is in them (docs/aws-behaviour.md 3.30)."""
    resources = everything()
    resources["Group"]["Properties"]["AutoScalingGroupName"] = "g" * 57
    del resources["Ready"]
    stack = cloud.create(resources, **{**GIVEN, "sections": {**SECTIONS, "Outputs": {}}})
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    assert "Subject must be less than 100 characters" in cloud.reason(stack, "Group", "CREATE_FAILED")
    groups = cloud.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    assert "g" * 57 not in [group["AutoScalingGroupName"] for group in groups]


def test_deleting_while_machines_start_leaves_none(cloud):
    before = inventory(cloud)
    cloud.runner.gate.clear()
    stack = cloud.create(everything(), **GIVEN)
    cloud.engine.idle()
    cloud.cloudformation.delete_stack(StackName=stack)
    cloud.runner.gate.set()
    assert cloud.settled(stack) == "DELETE_COMPLETE", [event for event in cloud.history(stack) if event[2]]
    assert inventory(cloud) == before


def test_stacks_side_by_side_do_not_disturb_each_other(cloud):
    before = inventory(cloud)
    several = [
        cloud.create({**network(), **security(), **access(), **storage_and_messages()}, **GIVEN_PLAIN) for _ in range(4)
    ]
    assert [cloud.settled(stack) for stack in several] == ["CREATE_COMPLETE"] * 4
    assert [cloud.deleted(stack) for stack in several] == ["DELETE_COMPLETE"] * 4
    assert inventory(cloud) == before


def test_a_creation_policy_waits_for_signals_of_instances(cloud):
    resources = everything()
    del resources["Ready"]
    resources["Group"]["CreationPolicy"] = {"ResourceSignal": {"Count": 1, "Timeout": "PT10M"}}
    sections = {**SECTIONS, "Outputs": {}}
    stack = cloud.create(resources, **{**GIVEN, "sections": sections})
    cloud.engine.idle()
    until(lambda: any(machine.vpc_id == cloud.physical(stack, "Vpc") for machine in list(cloud.runner.booted.values())))
    assert cloud.describe(stack)["StackStatus"] == "CREATE_IN_PROGRESS"
    signal = {"StackName": stack, "LogicalResourceId": "Group", "UniqueId": "i-1", "Status": "SUCCESS"}
    cloud.cloudformation.signal_resource(**signal)
    assert cloud.settled(stack) == "CREATE_COMPLETE"
    with pytest.raises(Exception, match="cannot be signaled"):
        cloud.cloudformation.signal_resource(**signal)
    assert cloud.deleted(stack) == "DELETE_COMPLETE"


def test_inline_code_is_packed_as_index(cloud):
    stack = cloud.made(
        {key: everything()[key] for key in ("FunctionRole", "Function", "Queue")}, Capabilities=["CAPABILITY_IAM"]
    )
    backend_code = cloud.client("lambda").get_function(FunctionName=cloud.physical(stack, "Function"))
    assert backend_code["Configuration"]["Handler"] == "index.handler"
    from moto.awslambda.models import lambda_backends

    function = lambda_backends[cloud.context.account]["us-east-1"].get_function(cloud.physical(stack, "Function"))
    assert zipfile.ZipFile(BytesIO(function.code_bytes)).namelist() == ["index.py"]
    cloud.deleted(stack)


HALF_MADE = {
    "a role": made(
        "AWS::IAM::Role", AssumeRolePolicyDocument=TRUST, ManagedPolicyArns=["arn:aws:iam::aws:policy/NoSuchPolicy"]
    ),
    "a security group": made(
        "AWS::EC2::SecurityGroup",
        GroupDescription="x",
        VpcId=ref("Vpc"),
        SecurityGroupIngress=[{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}],
    ),
    "a subscription": made(
        "AWS::SNS::Subscription", TopicArn=ref("Topic"), Protocol="sqs", Endpoint="arn", FilterPolicyScope="Nothing"
    ),
    "a log group": made("AWS::Logs::LogGroup", RetentionInDays=3, LogGroupName="half-made"),
    "a topic": made("AWS::SNS::Topic", Subscription=[{"Endpoint": "arn:aws:sqs:x:1:q", "Protocol": "pigeon"}]),
}


def test_a_resource_that_fails_midway_leaves_nothing(cloud, monkeypatch):
    def refuse(*_args):
        raise ResourceFailed("refused")

    for name in ("logs.models.LogsBackend.put_retention_policy", "sns.models.SNSBackend.set_subscription_attributes"):
        monkeypatch.setattr(f"moto.{name}", refuse)
    before = inventory(cloud)
    for case, bad in HALF_MADE.items():
        if case == "a topic":  # the last, for the subscription before it needs this
            monkeypatch.setattr("moto.sns.models.SNSBackend.subscribe", refuse)
        resources = {"Vpc": network()["Vpc"], "Topic": made("AWS::SNS::Topic"), "Bad": bad}
        stack = cloud.create(resources, Capabilities=["CAPABILITY_NAMED_IAM"])
        assert cloud.settled(stack) == "ROLLBACK_COMPLETE", (case, cloud.history(stack))
        assert cloud.status(stack, "Bad") == "CREATE_FAILED", case
        assert cloud.deleted(stack) == "DELETE_COMPLETE", case
    assert inventory(cloud) == before


def test_an_address_in_use_is_not_released(cloud):
    wanted = ("Vpc", "Gateway", "Attached", "Public")
    resources = {key: network()[key] for key in wanted} | {"Address": made("AWS::EC2::EIP", "Attached", Domain="vpc")}
    stack = cloud.made(resources)
    ec2 = cloud.client("ec2")
    interface = ec2.create_network_interface(SubnetId=cloud.physical(stack, "Public"))["NetworkInterface"]
    face = interface["NetworkInterfaceId"]
    address = cloud.physical(stack, "Address")
    allocation = ec2.describe_addresses(PublicIps=[address])["Addresses"][0]["AllocationId"]
    ec2.associate_address(AllocationId=allocation, NetworkInterfaceId=face)
    assert cloud.deleted(stack) == "DELETE_FAILED"
    assert f"Address {address} is in use" in cloud.reason(stack, "Address", "DELETE_FAILED")
    ec2.disassociate_address(PublicIp=address)
    ec2.delete_network_interface(NetworkInterfaceId=face)
    assert cloud.deleted(stack) == "DELETE_COMPLETE"


def test_a_record_of_a_file_system_is_written_whole_or_not_at_all(cloud, monkeypatch):
    def no_space(path, _text):
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", no_space)
    with pytest.raises(ClientError):
        cloud.client("efs").create_file_system(CreationToken="torn")
    assert [path for path in (cloud.context.state / "efs").glob("*.json") if not path.read_text()] == []


def test_getatt_takes_what_the_schema_says(cloud):
    for kind, known in TYPES.items():
        readable = [path.removeprefix("/properties/") for path in schemas.schema(kind).get("readOnlyProperties", [])]
        missing = {path for path in readable if "/" not in path} - known.attributes
        assert missing <= UNSUPPORTED.get(kind, set()), (kind, missing)


# Types that clusters do not use.
UNSUPPORTED = {
    "AWS::EC2::VPC": {"Ipv6CidrBlocks"},
    "AWS::EC2::Subnet": {"Ipv6CidrBlocks", "BlockPublicAccessStates"},
    "AWS::EC2::NatGateway": {"AutoProvisionZones", "AutoScalingIps", "RouteTableId"},
    "AWS::EC2::Instance": {"State"},
    "AWS::EC2::PlacementGroup": {"GroupId"},
    "AWS::ImageBuilder::Component": {"LatestVersion"},
    "AWS::ImageBuilder::Image": {"LatestVersion"},
    "AWS::ImageBuilder::ImageRecipe": {"LatestVersion"},
    "AWS::Lambda::Function": {"SnapStartResponse"},
    "AWS::S3::Bucket": {"MetadataConfiguration", "MetadataTableConfiguration"},
}


def routes(cloud: Stacks, table: str) -> dict[str, str]:
    """Map the destinations of a route table to their gateways."""
    (found,) = cloud.client("ec2").describe_route_tables(RouteTableIds=[table])["RouteTables"]
    return {
        route.get("DestinationPrefixListId") or route["DestinationCidrBlock"]: route.get("GatewayId", "")
        for route in found["Routes"]
    }


def gateway_endpoint(service: str) -> dict[str, Any]:
    tables = [ref("Public"), ref("Private")]
    return made(
        "AWS::EC2::VPCEndpoint",
        VpcId=ref("Vpc"),
        ServiceName={"Fn::Sub": "com.amazonaws.${AWS::Region}." + service},
        RouteTableIds=tables,
    )


NETWORK = {
    "Vpc": made("AWS::EC2::VPC", CidrBlock="10.0.0.0/16"),
    "Public": made("AWS::EC2::RouteTable", VpcId=ref("Vpc")),
    "Private": made("AWS::EC2::RouteTable", VpcId=ref("Vpc")),
}


def test_a_gateway_endpoint_adds_a_route_to_each_of_its_tables(cloud):
    stack = cloud.made({**NETWORK, "S3": gateway_endpoint("s3")})
    lists = cloud.client("ec2").describe_managed_prefix_lists()["PrefixLists"]
    (s3,) = (known["PrefixListId"] for known in lists if known["PrefixListName"] == "com.amazonaws.us-east-1.s3")
    endpoint, tables = cloud.physical(stack, "S3"), [cloud.physical(stack, name) for name in ("Public", "Private")]
    assert [routes(cloud, table).get(s3) for table in tables] == [endpoint, endpoint]
    cloud.deleted(stack)
    assert cloud.client("ec2").describe_vpc_endpoints()["VpcEndpoints"] == []


def test_a_gateway_endpoint_leads_to_a_service_that_exists(cloud):
    stack = cloud.create({**NETWORK, "Other": gateway_endpoint("s4")})
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    assert "'com.amazonaws.us-east-1.s4' does not exist" in cloud.reason(stack, "Other", "CREATE_FAILED")


def test_subnets_that_name_no_zone_are_not_all_in_the_first_one(cloud):
    blocks = {f"S{n}": made("AWS::EC2::Subnet", VpcId=ref("Vpc"), CidrBlock=f"10.0.{n}.0/24") for n in range(20, 40)}
    stack = cloud.made({**NETWORK, **blocks})
    ids = [cloud.physical(stack, name) for name in blocks]
    subnets = cloud.client("ec2").describe_subnets(SubnetIds=ids)["Subnets"]
    zones = {subnet["AvailabilityZone"] for subnet in subnets}
    assert len(zones) > 2 and not {zone for zone in zones if "atl" in zone}
    cloud.deleted(stack)


@pytest.mark.parametrize(
    ("resource", "what"),
    [
        (made("AWS::EC2::Subnet", VpcId=ref("Vpc"), Ipv6CidrBlock="2001:db8::/64"), "Ipv6CidrBlock"),
        (made("AWS::EC2::Route", RouteTableId=ref("Public"), VpcPeeringConnectionId="pcx-1"), "VpcPeeringConnectionId"),
        (made("AWS::EC2::VPCPeeringConnection", VpcId=ref("Vpc"), PeerVpcId="vpc-1"), "VPCPeeringConnection"),
        (made("AWS::EC2::VPCCidrBlock", VpcId=ref("Vpc"), AmazonProvidedIpv6CidrBlock=True), "VPCCidrBlock"),
    ],
)
def test_peering_and_ipv6_are_refused_before_anything_is_made(cloud, resource, what):
    with pytest.raises(ClientError, match=f"The local cloud does not support the .*{what}"):
        cloud.create({**NETWORK, "One": resource})


def test_a_vpc_with_a_foreign_endpoint_is_not_deleted(cloud):
    stack = cloud.made(NETWORK)
    ec2, vpc = cloud.client("ec2"), cloud.physical(stack, "Vpc")
    foreign = ec2.create_vpc_endpoint(VpcId=vpc, ServiceName="com.amazonaws.us-east-1.s3", VpcEndpointType="Gateway")
    assert cloud.deleted(stack) == "DELETE_FAILED"
    assert "has dependencies and cannot be deleted" in cloud.reason(stack, "Vpc", "DELETE_FAILED")
    ec2.delete_vpc_endpoints(VpcEndpointIds=[foreign["VpcEndpoint"]["VpcEndpointId"]])
    assert cloud.deleted(stack) == "DELETE_COMPLETE"


@pytest.mark.parametrize(
    ("profile", "region", "service", "status"),
    [
        ("own", "us-east-1", "ec2.amazonaws.com", "CREATE_COMPLETE"),
        ("china", "cn-north-1", "ec2.amazonaws.com.cn", "CREATE_COMPLETE"),
        ("china", "cn-north-1", "ec2.amazonaws.com", "CREATE_COMPLETE"),
        ("eusc", "eusc-de-east-1", "ec2.amazonaws.com", "CREATE_COMPLETE"),
        ("eusc", "eusc-de-east-1", "ec2.amazonaws.eu", "ROLLBACK_COMPLETE"),
        ("own", "us-east-1", "ec2.amazonaws.com.cn", "ROLLBACK_COMPLETE"),
    ],
)
def test_a_role_trusts_services_by_names_that_its_partition_knows(cloud, monkeypatch, profile, region, service, status):
    monkeypatch.setattr(partitions, "_profile", [profile])
    there = wsgi_clients.client("cloudformation", region, cloud.context.url_host, ADMINISTRATOR, lambda: cloud.app)
    trust = {**TRUST, "Statement": [{**TRUST["Statement"][0], "Principal": {"Service": service}}]}
    body = json.dumps({"Resources": {"Role": made("AWS::IAM::Role", AssumeRolePolicyDocument=trust)}})
    stack = there.create_stack(StackName=fleet_fakes.name("role"), TemplateBody=body, Capabilities=["CAPABILITY_IAM"])[
        "StackId"
    ]
    found = cloud.engine.find(stack, region)
    until(lambda: found.status and not found.status.endswith("IN_PROGRESS"))
    assert found.status == status


@pytest.mark.parametrize(("raw", "is_enveloped"), [(False, True), ("false", True), (True, False), ("true", False)])
def test_a_subscription_delivers_raw_messages_only_if_it_says_so(cloud, raw, is_enveloped):
    statement = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*"}
    stack = cloud.made(
        {
            "Queue": {"Type": "AWS::SQS::Queue"},
            "Policy": made("AWS::SQS::QueuePolicy", Queues=[ref("Queue")], PolicyDocument={"Statement": [statement]}),
            "Topic": {"Type": "AWS::SNS::Topic"},
            "Subscription": made(
                "AWS::SNS::Subscription",
                TopicArn=ref("Topic"),
                Protocol="sqs",
                Endpoint={"Fn::GetAtt": ["Queue", "Arn"]},
                RawMessageDelivery=raw,
            ),
        }
    )
    cloud.client("sns").publish(TopicArn=cloud.physical(stack, "Topic"), Message="hello")
    answer = cloud.client("sqs").receive_message(QueueUrl=cloud.physical(stack, "Queue"))
    (message,) = answer["Messages"]
    assert ("Notification" in message["Body"]) is is_enveloped
    cloud.deleted(stack)


@pytest.mark.parametrize(
    ("egress", "network"), [(None, "0.0.0.0/0"), ([], "0.0.0.0/0"), ([HTTPS], "10.0.0.0/8")], ids=str
)
def test_only_rules_replace_the_one_that_lets_everything_out(cloud, egress, network):
    vpc = {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.9.0.0/16"}}
    rules = {} if egress is None else {"SecurityGroupEgress": egress}
    given = {"GroupDescription": "a group", "VpcId": ref("Vpc"), **rules}
    stack = cloud.made({"Vpc": vpc, "Group": {"Type": "AWS::EC2::SecurityGroup", "Properties": given}})
    groups = cloud.client("ec2").describe_security_groups(GroupIds=[cloud.physical(stack, "Group")])["SecurityGroups"]
    ranges = [one["CidrIp"] for rule in groups[0]["IpPermissionsEgress"] for one in rule["IpRanges"]]
    assert ranges == [network]
    assert cloud.deleted(stack) == "DELETE_COMPLETE"


def test_an_instance_with_an_unknown_profile_is_not_launched(cloud):
    of_type = [{"Name": "architecture", "Values": ["x86_64"]}]
    image = cloud.client("ec2").describe_images(Owners=["amazon"], Filters=of_type)["Images"][0]["ImageId"]
    given = {"ImageId": image, "InstanceType": "t3.micro", "IamInstanceProfile": "nobody-s"}
    stack = cloud.create({"Machine": {"Type": "AWS::EC2::Instance", "Properties": given}})
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    assert "Invalid IAM Instance Profile name" in cloud.reason(stack, "Machine", "CREATE_FAILED")
