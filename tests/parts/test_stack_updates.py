"""Stacks of the local cloud are updated as CloudFormation does it: in place, by replacement, with a rollback."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from clusters import plan
from fleet_fakes import REGION, forget_resources, name, until
from stack_fakes import HANDLE, TOPIC, Stacks, stacks, waits

from localcloud.cloudformation.engine import StackRequest
from localcloud.cloudformation.signals import Signal
from localcloud.iam import credentials
from phalanx.template import request

MACHINES = {
    "HeadLaunchTemplate": "False",
    "WorkerLaunchTemplate": "False",
    "HeadGroup": "Conditional",
    "WorkersGroup": "Conditional",
}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running
        forget_resources(running.context.account)


def topic(text: str = "before") -> dict[str, Any]:
    return {"Type": "AWS::SNS::Topic", "Properties": {"DisplayName": text}}


def queue(seconds: int, **more: Any) -> dict[str, Any]:
    return {"Type": "AWS::SQS::Queue", "Properties": {"VisibilityTimeout": seconds}, **more}


def group(description: str, **properties: Any) -> dict[str, Any]:
    return {"Type": "AWS::EC2::SecurityGroup", "Properties": {"GroupDescription": description, **properties}}


def endpoint_of_s3(*tables: str, **more: Any) -> dict[str, Any]:
    routes = {"ServiceName": f"com.amazonaws.{REGION}.s3", "RouteTableIds": [{"Ref": table} for table in tables]}
    vpc: dict[str, Any] = {"Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.0.0.0/16"}}}
    found = {one: {"Type": "AWS::EC2::RouteTable", "Properties": {"VpcId": {"Ref": "Vpc"}}} for one in ("One", "Two")}
    made = {"VpcId": {"Ref": "Vpc"}, **routes, **more}
    return {**vpc, **found, "Endpoint": {"Type": "AWS::EC2::VPCEndpoint", "Properties": made}}


def test_an_endpoint_keeps_its_place_when_its_policy_and_its_route_tables_change(cloud: Stacks):
    """A second one for a route table would be refused."""
    stack = cloud.made(endpoint_of_s3("One"))
    before = cloud.physical(stack, "Endpoint")
    bound = {"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:Get*", "Resource": "*"}]}
    assert cloud.updated(stack, endpoint_of_s3("One", "Two", PolicyDocument=bound)) == "UPDATE_COMPLETE"
    assert cloud.physical(stack, "Endpoint") == before
    (found,) = cloud.client("ec2").describe_vpc_endpoints(VpcEndpointIds=[before])["VpcEndpoints"]
    assert (json.loads(found["PolicyDocument"]), len(found["RouteTableIds"])) == (bound, 2)
    assert cloud.updated(stack, endpoint_of_s3("Two")) == "UPDATE_COMPLETE"
    (found,) = cloud.client("ec2").describe_vpc_endpoints(VpcEndpointIds=[before])["VpcEndpoints"]
    assert json.loads(found["PolicyDocument"])["Statement"][0]["Action"] == "*"
    assert found["RouteTableIds"] == [cloud.physical(stack, "Two")]


def change_set(cloud: Stacks, stack: str, resources: dict[str, Any], **given: Any) -> dict[str, Any]:
    sections = given.pop("sections", {})
    body = json.dumps({"Resources": resources, **sections})
    made = cloud.cloudformation.create_change_set(
        StackName=stack, ChangeSetName=name("changes"), TemplateBody=body, **given
    )
    return cloud.cloudformation.describe_change_set(ChangeSetName=made["Id"])


def listed(described: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    """Return (action, logical id, replacement) of each change."""
    changes = [change["ResourceChange"] for change in described["Changes"]]
    return [(one["Action"], one["LogicalResourceId"], one.get("Replacement")) for one in changes]


def attribute(cloud: Stacks, url: str, key: str) -> str:
    return cloud.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=[key])["Attributes"][key]


def test_a_resource_is_changed_in_place_with_cloudformations_events(cloud):
    named = {"Type": "AWS::SNS::Topic", "Properties": {"TopicName": {"Ref": "AWS::StackName"}}}
    stack = cloud.made({"Queue": queue(30), "Topic": named})
    url = cloud.physical(stack, "Queue")
    before = len(cloud.history(stack))
    assert cloud.updated(stack, {"Queue": queue(60), "Topic": named}, ClientRequestToken="mine") == "UPDATE_COMPLETE"
    assert cloud.physical(stack, "Queue") == url
    assert attribute(cloud, url, "VisibilityTimeout") == "60"
    called = cloud.describe(stack)["StackName"]
    assert [(who, status) for who, status, _ in cloud.history(stack)[before:]] == [
        (called, "UPDATE_IN_PROGRESS"),
        ("Queue", "UPDATE_IN_PROGRESS"),
        ("Queue", "UPDATE_COMPLETE"),
        (called, "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS"),
        (called, "UPDATE_COMPLETE"),
    ]
    assert {event["ClientRequestToken"] for event in cloud.events(stack)[before:]} == {"mine"}
    assert cloud.describe(stack)["LastUpdatedTime"]


def test_resources_are_added_first_and_removed_last(cloud):
    stack = cloud.made({"Old": TOPIC, "Kept": queue(30), "Stays": {**TOPIC, "DeletionPolicy": "Retain"}})
    before = len(cloud.history(stack))
    assert cloud.updated(stack, {"Kept": queue(30), "New": TOPIC}) == "UPDATE_COMPLETE"
    steps = [(who, status) for who, status, _ in cloud.history(stack)[before:] if status != "UPDATE_COMPLETE"]
    assert steps.index(("New", "CREATE_COMPLETE")) < steps.index(("Old", "DELETE_IN_PROGRESS"))
    assert ("Stays", "DELETE_SKIPPED") in steps
    found = cloud.cloudformation.list_stack_resources(StackName=stack)["StackResourceSummaries"]
    assert [one["LogicalResourceId"] for one in found] == ["Kept", "New"]
    assert cloud.deleted(stack) == "DELETE_COMPLETE"


def test_what_can_not_change_in_place_is_replaced_and_what_refers_to_it_follows(cloud):
    def parts(description: str) -> dict[str, Any]:
        rule = {"GroupId": {"Ref": "Group"}, "IpProtocol": "-1", "CidrIp": "10.0.0.0/8"}
        return {"Group": group(description), "Rule": {"Type": "AWS::EC2::SecurityGroupIngress", "Properties": rule}}

    stack = cloud.made(parts("one"))
    old = cloud.physical(stack, "Group")
    planned = change_set(cloud, stack, parts("two"))
    assert listed(planned) == [("Modify", "Group", "True"), ("Modify", "Rule", "Conditional")]
    detail = planned["Changes"][1]["ResourceChange"]["Details"][0]
    assert detail["Target"] == {"Attribute": "Properties", "Name": "GroupId", "RequiresRecreation": "Always"}
    assert (detail["Evaluation"], detail["ChangeSource"]) == ("Dynamic", "ResourceReference")
    assert cloud.updated(stack, parts("two")) == "UPDATE_COMPLETE"
    assert cloud.physical(stack, "Group") != old
    with pytest.raises(ClientError, match=r"InvalidGroup\.NotFound"):
        cloud.client("ec2").describe_security_groups(GroupIds=[old])


def test_a_failure_takes_everything_back(cloud):
    stack = cloud.made({"First": queue(30), "Group": group("one"), "Gone": TOPIC})
    url, old = cloud.physical(stack, "First"), cloud.physical(stack, "Group")
    impossible = {
        "Type": "AWS::IAM::Role",
        "DependsOn": ["First", "Group", "Added"],
        "Properties": {
            "AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": []},
            "PermissionsBoundary": "arn:aws:iam::1:x",
        },
    }
    wanted = {"First": queue(60), "Group": group("two"), "Added": TOPIC, "Role": impossible}
    assert cloud.updated(stack, wanted, Capabilities=["CAPABILITY_IAM"]) == "UPDATE_ROLLBACK_COMPLETE"
    assert attribute(cloud, url, "VisibilityTimeout") == "30"
    assert cloud.physical(stack, "Group") == old
    history = cloud.history(stack)
    called = cloud.describe(stack)["StackName"]
    reason = next(why for who, status, why in history if (who, status) == (called, "UPDATE_ROLLBACK_IN_PROGRESS"))
    assert reason == "The following resource(s) failed to create: [Role]. "
    assert (called, "UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS", "") in history
    assert ("Added", "DELETE_COMPLETE", "") in history
    assert not any(who == "Gone" and status.startswith("DELETE") for who, status, _ in history)
    assert cloud.updated(stack, {"First": queue(45), "Group": group("one")}) == "UPDATE_COMPLETE"
    assert attribute(cloud, url, "VisibilityTimeout") == "45"


def test_an_update_can_be_cancelled_while_it_waits(cloud):
    stack = cloud.made({"Queue": queue(30)})
    wanted = {"Queue": queue(60), "Handle": HANDLE, "Wait": {**waits(), "DependsOn": "Queue"}}
    cloud.cloudformation.update_stack(StackName=stack, TemplateBody=json.dumps({"Resources": wanted}))
    with pytest.raises(ClientError, match="cannot be deleted while in status UPDATE_IN_PROGRESS"):
        cloud.cloudformation.delete_stack(StackName=stack)
    with pytest.raises(ClientError, match=f"Stack:{stack} is in UPDATE_IN_PROGRESS state and can not be updated"):
        cloud.updated(stack, {"Queue": queue(45)})
    cloud.cloudformation.cancel_update_stack(StackName=stack)
    assert cloud.settled(stack) == "UPDATE_ROLLBACK_COMPLETE"
    assert attribute(cloud, cloud.physical(stack, "Queue"), "VisibilityTimeout") == "30"
    with pytest.raises(ClientError, match="CancelUpdateStack cannot be called from current stack status"):
        cloud.cloudformation.cancel_update_stack(StackName=stack)


def test_parameters_keep_their_value_or_take_the_default(cloud):
    def sections(default: str) -> dict[str, Any]:
        return {"Parameters": {"Text": {"Type": "String", "Default": default}, "Unused": {"Type": "String"}}}

    resources = {"Topic": {"Type": "AWS::SNS::Topic", "Properties": {"DisplayName": {"Ref": "Text"}}}}
    given = [{"ParameterKey": "Text", "ParameterValue": "mine"}, {"ParameterKey": "Unused", "ParameterValue": "1"}]
    stack = cloud.made(resources, sections=sections("default"), Parameters=given)
    keep = [{"ParameterKey": key, "UsePreviousValue": True} for key in ("Text", "Unused")]
    unused = [keep[0], {"ParameterKey": "Unused", "ParameterValue": "2"}]
    for parameters in (keep, unused):
        with pytest.raises(ClientError, match=r"No updates are to be performed\."):
            cloud.cloudformation.update_stack(StackName=stack, UsePreviousTemplate=True, Parameters=parameters)
    with pytest.raises(ClientError, match="key not in the previous template"):
        new = {"ParameterKey": "New", "UsePreviousValue": True}
        cloud.cloudformation.update_stack(StackName=stack, UsePreviousTemplate=True, Parameters=[*keep, new])
    planned = change_set(cloud, stack, resources, sections=sections("other"), Parameters=keep[1:])
    detail = planned["Changes"][0]["ResourceChange"]["Details"][0]
    assert (detail["ChangeSource"], detail["CausingEntity"], detail["Evaluation"]) == (
        "ParameterReference",
        "Text",
        "Static",
    )
    cloud.cloudformation.execute_change_set(ChangeSetName=planned["ChangeSetId"])
    assert cloud.settled(stack) == "UPDATE_COMPLETE"
    values = {one["ParameterKey"]: one["ParameterValue"] for one in cloud.describe(stack)["Parameters"]}
    assert values == {"Text": "other", "Unused": "1"}
    arn = cloud.physical(stack, "Topic")
    assert cloud.client("sns").get_topic_attributes(TopicArn=arn)["Attributes"]["DisplayName"] == "other"


def test_outputs_metadata_and_tags_are_updates_by_themselves(cloud):
    stack = cloud.made({"Queue": queue(30)}, Tags=[{"Key": "old", "Value": "1"}])
    outputs = {"Outputs": {"Name": {"Value": {"Fn::GetAtt": ["Queue", "QueueName"]}}}}
    assert cloud.updated(stack, {"Queue": queue(30)}, sections=outputs) == "UPDATE_COMPLETE"
    assert cloud.describe(stack)["Outputs"][0]["OutputKey"] == "Name"
    planned = change_set(cloud, stack, {"Queue": queue(30, Metadata={"seen": "1"})}, sections=outputs)
    assert planned["Changes"][0]["ResourceChange"]["Scope"] == ["Metadata"]
    assert cloud.updated(stack, {"Queue": queue(30)}, Tags=[{"Key": "new", "Value": "2"}]) == "UPDATE_COMPLETE"
    tags = cloud.client("sqs").list_queue_tags(QueueUrl=cloud.physical(stack, "Queue"))["Tags"]
    assert tags["new"] == "2" and "old" not in tags
    assert cloud.describe(stack)["Tags"] == [{"Key": "new", "Value": "2"}]


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        ({"Topic": TOPIC, "Zone": {"Type": "AWS::Route53::HostedZone"}}, "does not support the resource types"),
        (
            {
                "Topic": TOPIC,
                "Bucket": {
                    "Type": "AWS::S3::Bucket",
                    "Properties": {"PublicAccessBlockConfiguration": {"BlockPublicAcls": True}},
                },
            },
            r"can't change PublicAccessBlockConfiguration of Bucket \(AWS::S3::Bucket\) in place",
        ),
    ],
)
def test_what_is_not_served_is_refused_by_name_before_anything_is_changed(cloud, resources, reason):
    stack = cloud.made({"Topic": TOPIC, "Bucket": {"Type": "AWS::S3::Bucket"}})
    before = len(cloud.history(stack))
    with pytest.raises(ClientError, match=reason):
        cloud.updated(stack, resources)
    with pytest.raises(ClientError, match=reason):
        change_set(cloud, stack, resources)
    assert len(cloud.history(stack)) == before


def test_a_resource_keeps_its_type(cloud):
    stack, reason = cloud.made({"Topic": TOPIC}), "modifies resource type of the following resources: [Topic]"
    with pytest.raises(ClientError, match=re.escape(reason)):
        cloud.updated(stack, {"Topic": queue(30)})
    planned = change_set(cloud, stack, {"Topic": queue(30)})
    assert (planned["Status"], planned["ExecutionStatus"]) == ("FAILED", "UNAVAILABLE")
    assert reason in planned["StatusReason"]


def test_a_resource_with_a_name_of_its_own_is_not_replaced(cloud):
    called = name("group")
    stack = cloud.made({"Group": group("one", GroupName=called)})
    old = cloud.physical(stack, "Group")
    assert cloud.updated(stack, {"Group": group("two", GroupName=called)}) == "UPDATE_ROLLBACK_COMPLETE"
    reason = cloud.reason(stack, "Group", "UPDATE_FAILED")
    assert reason.startswith("CloudFormation cannot update a stack when a custom-named resource requires replacing.")
    assert cloud.physical(stack, "Group") == old


def test_a_change_set_is_void_after_another_update(cloud):
    stack = cloud.made({"Queue": queue(30)})
    planned = change_set(cloud, stack, {"Queue": queue(60)})
    assert cloud.updated(stack, {"Queue": queue(45)}) == "UPDATE_COMPLETE"
    with pytest.raises(ClientError, match="ChangeSetNotFound"):
        cloud.cloudformation.execute_change_set(ChangeSetName=planned["ChangeSetId"])


@pytest.fixture(scope="module")
def cluster(cloud: Stacks) -> str:
    """A stack of phalanx's own template, whose head reports that all is ready."""
    body, given = request(plan())
    parameters = [{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()]
    stack = cloud.create({}, TemplateBody=body, Parameters=parameters, Capabilities=["CAPABILITY_IAM"])
    until(lambda: cloud.engine.find(stack, REGION).resources["Ready1"].status == "CREATE_IN_PROGRESS", "Ready1", 60.0)
    cloud.engine.signal_handle(cloud.physical(stack, "ReadyHandle1"), Signal("head", "SUCCESS", "4 of 4"))
    assert cloud.settled(stack) == "CREATE_COMPLETE", cloud.history(stack)
    return stack


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"idle_s": 1800}, {"FleetTopic": "False"}),
        ({"mail": "me@example.com"}, {"MailSubscription": None}),
        ({"ssh_from": ["10.1.0.0/16", "10.2.0.0/16"]}, {"HeadSecurityGroup": "False"}),
        # The user data names the role, whose ARN is only known to stay the same once the role was changed.
        ({"policies": ["arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess"]}, {"JobRole": "False", **MACHINES}),
        ({"throughput": "elastic"}, {"FileSystem": "False"}),
        (
            {"type": "m5.large", "disk": {"size_gib": 100}, "key_pair": "mine", "slots": 3, "node_timeout_s": 900},
            MACHINES,
        ),
        (
            {"placement": "cluster", "capacity": "spot"},
            {"PlacementGroup": None, **MACHINES},
        ),
    ],
    ids=lambda value: "-".join(value),
)
def test_a_changed_key_of_phalanx_changes_these_parts_of_its_stack(cloud, cluster, fields, expected):
    assert {name: replacement for _, name, replacement in listed(revised(cloud, cluster, **fields))} == expected


def test_tags_reach_every_part_of_a_cluster_that_takes_them(cloud, cluster):
    changed = listed(revised(cloud, cluster, Tags=[{"Key": "project", "Value": "vision"}]))
    assert {action for action, _, _ in changed} == {"Modify"}
    assert {"Vpc", "HeadGroup", "RosterTable", "LogGroup", "Function", "HeadRole"} <= {name for _, name, _ in changed}


def test_an_update_leaves_the_sizes_of_groups_that_were_changed_since(cloud, cluster):
    groups, called = cloud.client("autoscaling"), cloud.describe(cluster)["StackName"]
    names = {role: f"{called}-{role}" for role in ("head", "workers")}
    groups.update_auto_scaling_group(AutoScalingGroupName=names["workers"], MaxSize=9)
    groups.update_auto_scaling_group(AutoScalingGroupName=names["head"], MaxSize=0, DesiredCapacity=0)
    for kind, version in (("m5.large", "2"), ("c5.large", "3")):
        changes = revised(cloud, cluster, type=kind)
        cloud.cloudformation.execute_change_set(ChangeSetName=changes["ChangeSetId"])
        assert cloud.settled(cluster) == "UPDATE_COMPLETE", cloud.history(cluster)
        answer = groups.describe_auto_scaling_groups(AutoScalingGroupNames=list(names.values()))["AutoScalingGroups"]
        found = {one["AutoScalingGroupName"]: one for one in answer}
        assert (found[names["head"]]["MaxSize"], found[names["workers"]]["MaxSize"]) == (0, 9)
        assert {one["LaunchTemplate"]["Version"] for one in answer} == {version}


def revised(cloud: Stacks, cluster: str, **fields: Any) -> dict[str, Any]:
    """Return the change set of phalanx's template with these fields, or these tags of the stack."""
    tags = {"Tags": fields.pop("Tags")} if "Tags" in fields else {}
    body, given = request(plan(**fields))
    present = cloud.describe(cluster)["Parameters"]
    kept = [
        {"ParameterKey": one["ParameterKey"], "UsePreviousValue": True}
        for one in present
        if one["ParameterKey"].startswith("Agent") or one["ParameterKey"] in given
    ]
    made = cloud.cloudformation.create_change_set(
        StackName=cluster,
        ChangeSetName=name("changes"),
        TemplateBody=body,
        Parameters=kept,
        Capabilities=["CAPABILITY_IAM"],
        **tags,
    )
    return cloud.cloudformation.describe_change_set(ChangeSetName=made["Id"])


def test_updates_go_with_the_rights_of_the_caller_and_so_does_what_a_rollback_lacked(cloud):
    stack = cloud.made({"Topic": topic("before")})
    with credentials.calling("AROA:me", lambda action, arn, keys: "no" * (action == "sns:SetTopicAttributes")):
        body = json.dumps({"Resources": {"Topic": topic("after")}})
        cloud.engine.update(StackRequest(stack, REGION, body))
    assert cloud.settled(stack) == "UPDATE_ROLLBACK_FAILED"
    assert cloud.reason(stack, "Topic", "UPDATE_FAILED").startswith("no (Service: CloudFormation")
    cloud.cloudformation.continue_update_rollback(StackName=stack)
    assert cloud.settled(stack) == "UPDATE_ROLLBACK_COMPLETE"
    with pytest.raises(ClientError, match="can not be rolled back further"):
        cloud.cloudformation.continue_update_rollback(StackName=stack)
