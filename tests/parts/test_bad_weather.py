"""Each kind of weather where it strikes, in the local cloud's API."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from aws_here import AwsHere
from botocore.exceptions import ClientError
from fleet_fakes import ADMINISTRATOR, Cloud, Group, cloud, received, subscribed, until
from moto.ec2.models import ec2_backends

from localcloud.context import Issued
from localcloud.daemon import faults
from localcloud.ec2 import gpus
from localcloud.ec2 import service as ec2
from localcloud.iam import credentials
from localcloud.weather import launches, newcomers
from localcloud.weather.forecast import Forecast
from localcloud.weather.neighbours import _guard_duty, _make_group, _make_interface
from phalanx.aws import lookups
from phalanx.aws.inventory import foreign
from phalanx.aws.model import Resource
from phalanx.errors import CloudError
from phalanx.spec.spec import ClusterSpec

SQS = {"Effect": "Allow", "Action": "sqs:*", "Resource": "*"}


@pytest.fixture
def local(tmp_path) -> Iterator[Cloud]:
    with cloud(tmp_path) as made:
        yield made


def begin(local: Cloud, kind: str, seed: int = 7) -> None:
    local.context.weather.change(Forecast(seed, (kind,)))


def struck(local: Cloud) -> list[str]:
    return list(local.context.weather.events)


def test_notifications_are_late_or_twice_or_lost(local):
    topic, url = subscribed(local)
    group = Group(local, MaxSize=20)
    group.api.put_notification_configuration(
        AutoScalingGroupName=group.name, TopicARN=topic, NotificationTypes=["autoscaling:EC2_INSTANCE_LAUNCH"]
    )
    received(local, url)
    begin(local, "notifications")
    group.want(20)
    group.reaches(20)
    at_once = notified(local, url)
    local.clock.advance(60)
    late = notified(local, url)
    fates = Counter(event.rpartition(" ")[2] for event in struck(local))
    assert len(fates) > 1
    assert len(set(at_once + late)) == 20 - fates["never"]
    assert len(late) == fates["twice"] + fates["late"]


def notified(local: Cloud, url: str) -> list[str]:
    """Return the instances that all waiting notifications are about."""
    found: list[str] = []
    while messages := received(local, url):
        found += [message["EC2InstanceId"] for _, message in messages]
    return found


def test_messages_arrive_twice_and_out_of_order(local, monkeypatch):
    url, _ = local.queue()
    begin(local, "messages")
    sent = [str(number) for number in range(30)]
    for body in sent:
        local.client("sqs").send_message(QueueUrl=url, MessageBody=body)
    api, found = local.client("sqs"), []
    until(lambda: found.extend(api.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])) or 1)
    now = time.time
    monkeypatch.setattr("localcloud.messaging.queues.time.time", lambda: now() + 11)
    while messages := api.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", []):
        found += messages
    bodies = [message["Body"] for message in found]
    assert sorted(set(bodies), key=int) == sent
    assert len(bodies) == len(sent) + len(struck(local))
    assert len(struck(local)) > 0
    assert bodies != sorted(bodies, key=int)


def test_a_message_of_more_than_one_mib_is_refused_in_any_weather(local):
    url, most = local.queue()[0], "x" * (1 << 20)
    sqs = local.client("sqs")
    sqs.send_message(QueueUrl=url, MessageBody=most)
    with pytest.raises(ClientError, match="Message must be shorter than 1048576 bytes"):
        sqs.send_message(QueueUrl=url, MessageBody=f"{most}x")


def test_a_new_policy_takes_effect_later(local):
    begin(local, "permissions")
    url, _ = local.queue()
    role = local.role("ec2.amazonaws.com", SQS)
    (subnet,) = local.network()[1]
    template = local.template(IamInstanceProfile={"Name": local.profile(role)})
    launch = {"LaunchTemplateId": template}
    made = local.client("ec2").run_instances(MinCount=1, MaxCount=1, SubnetId=subnet, LaunchTemplate=launch)
    keys = keys_of(local, made["Instances"][0]["InstanceId"])
    with pytest.raises(ClientError, match="no identity-based policy allows"):
        local.client("sqs", keys).send_message(QueueUrl=url, MessageBody="early")
    local.clock.advance(9)
    with pytest.raises(ClientError, match="no identity-based policy allows"):
        local.client("sqs", keys).send_message(QueueUrl=url, MessageBody="early")
    local.clock.advance(51)
    local.client("sqs", keys).send_message(QueueUrl=url, MessageBody="in time")


def keys_of(local: Cloud, instance_id: str) -> Issued:
    instance = next(one for one in ec2.fleet.current().live() if one.id == instance_id)
    found = credentials.for_instance(local.context, instance)
    return local.context.issued[found["AccessKeyId"]]


def test_a_launch_fails_and_the_next_one_works(local):
    begin(local, "launches")
    group = Group(local, MaxSize=40)
    group.want(40)
    until(lambda: not local.clock.advance(60) and len(group.in_service()) == 40)
    reasons = {activity["StatusMessage"].split(" Launching EC2")[0] for activity in group.failed()}
    assert len(reasons) == len({event.rpartition(" ")[2] for event in struck(local)})
    outcomes = [activity["StatusCode"] for activity in group.activities()]
    assert all(outcomes[at : at + 2] != ["Failed", "Failed"] for at in range(len(outcomes)))


def test_calls_are_throttled_in_each_services_words(local):
    begin(local, "throttling")
    codes = {
        "ec2": ("describe_instances", "RequestLimitExceeded"),
        "autoscaling": ("describe_auto_scaling_groups", "Throttling"),
        "dynamodb": ("list_tables", "ProvisionedThroughputExceededException"),
        "lambda": ("list_functions", "TooManyRequestsException"),
    }
    for service, (operation, code) in codes.items():
        api = local.fresh_client(service, ADMINISTRATOR)
        assert code in {refusal(api, operation) for _ in range(60)}
    url, _ = local.queue()
    for _ in range(60):
        local.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])


def refusal(api, operation: str) -> str:
    try:
        getattr(api, operation)()
    except ClientError as error:
        return error.response["Error"]["Code"]
    return ""


def test_a_public_instance_has_no_way_out_for_a_while_and_a_private_one_has_it_at_once(local):
    begin(local, "way-out")
    vpc, (public, private) = local.network(("us-east-1a", "us-east-1b"))
    api = local.client("ec2")
    gateway = api.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    api.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    table = api.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    api.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    api.associate_route_table(RouteTableId=table, SubnetId=public)
    template = {"LaunchTemplateId": local.template()}
    head, worker = (
        api.run_instances(MinCount=1, MaxCount=1, SubnetId=subnet, LaunchTemplate=template)["Instances"][0][
            "InstanceId"
        ]
        for subnet in (public, private)
    )
    until(lambda: {head, worker} <= local.runner.booted.keys() and local.clock.due)
    assert (local.runner.booted[head].has_way_out, local.runner.booted[worker].has_way_out) == (False, True)
    assert local.runner.given_way_out == []
    local.clock.advance(180)
    assert local.runner.given_way_out == [head]


def test_an_instance_lacks_credentials_at_first(local):
    begin(local, "metadata")
    (subnet,) = local.network()[1]
    template = {"LaunchTemplateId": local.template(IamInstanceProfile={"Name": local.profile(local.role())})}
    for _ in range(6):
        local.client("ec2").run_instances(MinCount=1, MaxCount=1, SubnetId=subnet, LaunchTemplate=template)
    look = ec2.lookup(local.context)
    addresses = [(one.vpc_id or "", one.private_ip or "") for one in ec2.fleet.current().live()]

    def starts() -> set[str]:
        found = [look(*address) for address in addresses]
        return {str(facts.credentials()["Code"]) if facts.role_name else "404" for facts in found if facts}

    assert starts() == {"404", "AssumeRoleUnauthorizedAccess"}
    assert {facts.must_wait() for address in addresses for _ in range(20) if (facts := look(*address))} == {True, False}
    local.clock.advance(120)
    assert starts() == {"Success"}
    assert not any(facts.must_wait() for address in addresses for _ in range(20) if (facts := look(*address)))


def test_the_same_seed_brings_the_same_weather(local):
    seen = []
    for _ in range(2):
        local.context.weather.change(Forecast(7, ("launches",)))
        for _ in range(10):
            launch_or_fail(local)
        seen.append(struck(local))
    assert seen[0] == seen[1]
    assert seen[0]


def launch_or_fail(local: Cloud) -> None:
    (subnet,) = local.network()[1]
    try:
        local.client("ec2").run_instances(
            MinCount=1, MaxCount=1, SubnetId=subnet, LaunchTemplate={"LaunchTemplateId": local.template()}
        )
    except ClientError:
        pass


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("service-linked-role", "Service-Linked Role for Auto Scaling could not be created"),
        ("explicit-deny", "explicit deny in a service control policy"),
    ],
)
def test_an_organisations_rule_refuses_a_group(local, rule, message):
    begin(local, rule)
    with pytest.raises(ClientError, match=message):
        Group(local)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            "tag-policy",
            "The tag policy does not allow the specified value for the following tag key: 'Name'.",
        ),
        ("disk-key", "Termination Reason: Client.InternalError: Client error on launch"),
    ],
)
def test_an_organisations_rule_fails_every_launch(local, rule, message):
    begin(local, rule)
    group = Group(local)
    group.want(1)
    ended = until(lambda: [one for one in group.activities() if one["StatusCode"] in ("Failed", "Cancelled")])
    assert message in ended[0]["StatusMessage"]
    assert group.in_service() == []


def test_a_key_that_auto_scaling_may_not_use_is_seen_before_a_launch(local):
    asked = AwsHere(local.client)
    assert lookups.disk_key(asked) == ""
    begin(local, "disk-key")
    assert lookups.disk_key(asked).startswith("arn:aws:kms:")


def test_neighbours_keep_a_subnet_from_being_deleted(local):
    begin(local, "neighbours")
    api, made = local.client("ec2"), []
    for _ in range(12):
        vpc, (subnet,) = local.network()
        template = {"LaunchTemplateId": local.template()}
        api.run_instances(MinCount=1, MaxCount=1, SubnetId=subnet, LaunchTemplate=template)
        made.append(vpc)
    until(lambda: len(local.runner.booted) == 12)
    until(lambda: local.clock.advance(60) or len(local.clock.due) == 0)
    what = {event.split()[1] for event in struck(local)}
    assert what == {"GuardDuty's", "interface", "security"}
    services = [one["ServiceName"] for one in api.describe_vpc_endpoints()["VpcEndpoints"]]
    assert set(services) == {"com.amazonaws.us-east-1.guardduty-data"}


def test_an_instance_stands_still_for_a_while(local):
    (subnet,) = local.network()[1]
    template = {"LaunchTemplateId": local.template()}
    made = local.client("ec2").run_instances(MinCount=1, MaxCount=1, SubnetId=subnet, LaunchTemplate=template)
    instance = made["Instances"][0]["InstanceId"]
    until(lambda: instance in local.runner.booted)
    faults.apply(local.context, {"stall": {"instance_id": instance, "for_s": 40}})
    assert local.runner.stalled == {instance: True}
    local.clock.advance(40)
    assert local.runner.stalled == {instance: False}


def test_the_shared_directory_of_all_nodes_is_away_once(local):
    local.context.weather.change(Forecast(7, ("storage",), 10))
    (subnet,) = local.network()[1]
    template = {"LaunchTemplateId": local.template()}
    for _ in range(2):
        local.client("ec2").run_instances(MinCount=1, MaxCount=1, SubnetId=subnet, LaunchTemplate=template)
    until(lambda: len(local.runner.booted) == 2)
    until(lambda: local.clock.due)
    local.clock.advance(60)
    assert local.runner.frozen_s == dict.fromkeys(local.runner.booted, 30.0)
    assert len(struck(local)) == 1


class Api:
    """Calls as phalanx.aws makes them."""

    def __init__(self, local: Cloud) -> None:
        self._local = local

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        try:
            return getattr(self._local.client(service), operation)(**arguments)
        except ClientError as error:
            raise CloudError(str(error)) from error

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
        yield from self.call(service, operation, **arguments)[key]


def test_what_guard_duty_made_can_be_deleted_and_what_a_person_made_is_named(local):
    vpc, (subnet,) = local.network()
    backend = ec2_backends[local.context.account]["us-east-1"]
    for act in (_guard_duty, _make_interface, _make_group):
        act(backend, vpc, subnet)
    api, mine = Api(local), {"Key": "phalanx:cluster", "Value": "demo"}
    group = local.client("ec2").create_security_group(GroupName="mine", Description="x", VpcId=vpc)["GroupId"]
    local.client("ec2").create_tags(Resources=[group], Tags=[mine])
    assert len(foreign.find(api, "demo", vpc)) == 5
    first = foreign.delete_guard_duty(api, vpc)
    assert [line.rpartition("(")[2] for line in first] == ["com.amazonaws.us-east-1.guardduty-data)"]
    assert foreign.delete_guard_duty(api, vpc) == []
    left = foreign.find(api, "demo", vpc)
    assert [line.split(" ")[0] for line in left] == ["network", "security"]
    assert left[0].endswith("(by hand)")
    assert group not in left[1]


def _endpoint(ec2: Any, vpc: str) -> list[Resource]:
    named = {"ServiceName": "com.amazonaws.us-east-1.s3", "VpcEndpointType": "Gateway"}
    made = ec2.create_vpc_endpoint(VpcId=vpc, **named)["VpcEndpoint"]["VpcEndpointId"]
    return [Resource("S3Endpoint", made, "AWS::EC2::VPCEndpoint")]


def test_clusters_that_share_a_network_or_a_file_system_are_known_by_their_groups(local):
    ec2, api = local.client("ec2"), Api(local)
    vpc, _ = local.network()

    def group(cluster: str) -> str:
        made = ec2.create_security_group(GroupName=cluster, Description="x", VpcId=vpc)["GroupId"]
        ec2.create_tags(Resources=[made], Tags=[{"Key": "phalanx:cluster", "Value": cluster}])
        return made

    storage, other = group("demo"), group("mounts")
    mine = [Resource("Storage", storage, "AWS::EC2::SecurityGroup")]
    assert foreign.sharers(api, "demo", mine) == []
    rule = {"IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049, "UserIdGroupPairs": [{"GroupId": other}]}
    ec2.authorize_security_group_ingress(GroupId=storage, IpPermissions=[rule])
    group("beside")
    assert foreign.sharers(api, "demo", mine) == ["mounts"]
    made = [*mine, Resource("Vpc", vpc, "AWS::EC2::VPC")]
    assert foreign.sharers(api, "demo", made) == ["beside", "mounts"]
    mine += _endpoint(ec2, vpc)
    ec2.delete_security_group(GroupId=group("left"))
    public = ec2.create_security_group(GroupName="beside-HeadSecurityGroup-1", Description="x", VpcId=vpc)["GroupId"]
    assert foreign.sharers(api, "demo", mine) == ["beside", "mounts"]
    ec2.create_tags(Resources=[public], Tags=[{"Key": "phalanx:cluster", "Value": "beside"}])
    assert foreign.sharers(api, "demo", mine) == ["mounts"], "one with a public head has another way to AWS"
    assert foreign.sharers(api, "demo", []) == []


def test_the_default_of_node_timeout_covers_the_worst_weather_of_a_launch_and_half_of_it_does_not():
    """No way out, no credentials and a busy apt begin with the launch; packages and GPUs come after them."""
    boot_s, packages_s = 60.0, 30.0
    at_once_s = max(launches._LONGEST_WITHOUT_WAY_OUT_S, newcomers._LONGEST_S, *launches._APT_BUSY_S)
    default_s = ClusterSpec(name="demo", nodes=2).node_timeout_s
    assert default_s / 2 < boot_s + at_once_s + packages_s + max(gpus._COLD_S) <= default_s
