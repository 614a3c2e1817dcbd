"""Stacks are created in order, wait, fail, roll back and are deleted, as in CloudFormation."""

from __future__ import annotations

import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import REGION
from stack_fakes import HANDLE, TOPIC, Stacks, stacks, waits

from localcloud.cloudformation.engine import StackRequest
from localcloud.iam import credentials

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running


def put(url: str, document: object, content_type: str = "") -> int:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    request = urllib.request.Request(url, body, {"Content-Type": content_type}, method="PUT")
    try:
        with urllib.request.urlopen(request) as response:
            return response.status
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def test_events_show_each_step_in_order_with_physical_ids_and_the_token(cloud):
    stack = cloud.made({"Second": {**TOPIC, "DependsOn": "First"}, "First": TOPIC}, ClientRequestToken="token-1")
    steps = [(who, status) for who, status, _ in cloud.history(stack)][1:-1]
    each = ["CREATE_IN_PROGRESS", "CREATE_IN_PROGRESS", "CREATE_COMPLETE"]
    assert steps == [("First", status) for status in each] + [("Second", status) for status in each]
    assert cloud.reason(stack, cloud.describe(stack)["StackName"], "CREATE_IN_PROGRESS") == "User Initiated"
    events = cloud.events(stack)
    assert {event["ClientRequestToken"] for event in events} == {"token-1"}
    assert [event["PhysicalResourceId"][:4] for event in events if event["LogicalResourceId"] == "First"] == [
        "",
        "arn:",
        "arn:",
    ]


def test_a_stack_shows_its_outputs_parameters_tags_and_template(cloud):
    sections = {
        "Description": "two words",
        "Parameters": {"Word": {"Type": "String", "Default": "hi"}, "Secret": {"Type": "String", "NoEcho": True}},
        "Outputs": {"Name": {"Value": {"Fn::GetAtt": ["Topic", "TopicName"]}, "Description": "its name"}},
    }
    given = {"Parameters": [{"ParameterKey": "Secret", "ParameterValue": "s3cret"}]}
    stack = cloud.made({"Topic": TOPIC}, sections=sections, Tags=[{"Key": "who", "Value": "me"}], **given)
    shown = cloud.describe(stack)
    assert cloud.outputs(stack)["Name"].startswith(shown["StackName"] + "-Topic-")
    assert {p["ParameterKey"]: p["ParameterValue"] for p in shown["Parameters"]} == {"Word": "hi", "Secret": "****"}
    assert shown["Tags"] == [{"Key": "who", "Value": "me"}]
    assert json.dumps(cloud.cloudformation.get_template(StackName=stack)["TemplateBody"]).count("two words") == 1
    assert "s3cret" not in str(shown)


def test_tags_of_the_stack_reach_its_resources(cloud):
    stack = cloud.made(
        {"Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.9.0.0/16"}}},
        Tags=[{"Key": "who", "Value": "me"}],
    )
    vpc = cloud.client("ec2").describe_vpcs(VpcIds=[cloud.physical(stack, "Vpc")])["Vpcs"][0]
    tags = {tag["Key"]: tag["Value"] for tag in vpc["Tags"]}
    assert tags["who"] == "me"
    assert tags["aws:cloudformation:stack-id"] == stack
    assert tags["aws:cloudformation:logical-id"] == "Vpc"


def test_a_wait_condition_holds_only_what_depends_on_it(cloud):
    resources = {"Handle": HANDLE, "Wait": waits(), "After": {**TOPIC, "DependsOn": "Wait"}, "Beside": TOPIC}
    outputs = {"Outputs": {"Data": {"Value": {"Fn::GetAtt": ["Wait", "Data"]}}}}
    stack = cloud.create(resources, sections=outputs)
    cloud.engine.idle()
    assert ("Beside", "CREATE_COMPLETE", "") in cloud.history(stack)
    assert not [event for event in cloud.history(stack) if event[0] == "After"]
    put(cloud.physical(stack, "Handle"), {"Status": "SUCCESS", "UniqueId": "me", "Data": "all well"})
    assert cloud.settled(stack) == "CREATE_COMPLETE"
    assert json.loads(cloud.outputs(stack)["Data"]) == {"me": "all well"}


def test_signals_count_by_unique_id_and_early_ones_too(cloud):
    stack = cloud.create(
        {"Handle": HANDLE, "Gate": waits(), "Wait": {**waits("Own", Count=2), "DependsOn": "Gate"}, "Own": HANDLE}
    )
    own = cloud.idle_physical(stack, "Own")
    put(own, {"Status": "SUCCESS", "UniqueId": "a", "Data": "1"})
    put(own, {"Status": "SUCCESS", "UniqueId": "a", "Data": "again"})
    put(cloud.physical(stack, "Handle"), {"Status": "SUCCESS", "UniqueId": "x"})
    cloud.engine.idle()
    assert cloud.describe(stack)["StackStatus"] == "CREATE_IN_PROGRESS"
    put(own, {"Status": "SUCCESS", "UniqueId": "b", "Data": "2"})
    assert cloud.settled(stack) == "CREATE_COMPLETE"
    attributes = cloud.engine.find(stack, REGION).resources["Wait"].attributes
    assert json.loads(attributes["Data"]) == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            {"Status": "FAILURE", "UniqueId": "me", "Reason": "no node answered"},
            "WaitCondition received failed message: 'no node answered' for uniqueId: me",
        ),
        (b"not json", "Unparsable WaitCondition data"),
        ({"Status": "MAYBE", "UniqueId": "me"}, "Unparsable WaitCondition data"),
        ({"Status": "SUCCESS"}, "Unparsable WaitCondition data"),
    ],
)
def test_a_failed_signal_rolls_the_stack_back(cloud, body, reason):
    stack = cloud.create({"Handle": HANDLE, "Wait": waits()})
    put(cloud.idle_physical(stack, "Handle"), body)
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    assert cloud.reason(stack, "Wait", "CREATE_FAILED") == reason


def test_a_timeout_cancels_what_is_in_progress(cloud):
    resources = {"Handle": HANDLE, "Short": waits(Timeout="60"), "Long": waits(Timeout="600"), "Topic": TOPIC}
    stack = cloud.create(resources)
    cloud.engine.idle()
    cloud.clock.advance(61)
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    name = cloud.describe(stack)["StackName"]
    expected = "WaitCondition timed out. Received 0 conditions when expecting 1"
    assert cloud.reason(stack, "Short", "CREATE_FAILED") == expected
    assert cloud.reason(stack, "Long", "CREATE_FAILED") == "Resource creation cancelled"
    verdict = "The following resource(s) failed to create: [Short]. Rollback requested by user."
    assert cloud.reason(stack, name, "ROLLBACK_IN_PROGRESS") == verdict
    assert not cloud.client("sns").list_subscriptions()["Subscriptions"]


def test_the_whole_stack_has_a_timeout_too(cloud):
    stack = cloud.create({"Handle": HANDLE, "Wait": waits()}, TimeoutInMinutes=1)
    cloud.engine.idle()
    cloud.clock.advance(61)
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    reason = cloud.reason(stack, cloud.describe(stack)["StackName"], "ROLLBACK_IN_PROGRESS")
    assert reason.startswith("Stack creation time exceeded the specified timeout")


@pytest.mark.parametrize(
    ("given", "status", "left"),
    [
        ({}, "ROLLBACK_COMPLETE", False),
        ({"OnFailure": "DELETE"}, "DELETE_COMPLETE", False),
        ({"OnFailure": "DO_NOTHING"}, "CREATE_FAILED", True),
        ({"DisableRollback": True}, "CREATE_FAILED", True),
    ],
)
def test_what_happens_on_failure_is_the_callers_choice(cloud, given, status, left):
    bad = {"Type": "AWS::EC2::Subnet", "Properties": {"VpcId": {"Ref": "Vpc"}, "CidrBlock": "192.168.0.0/24"}}
    resources = {"Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.0.0.0/16"}}, "Subnet": bad}
    stack = cloud.create(resources, **given)
    assert cloud.settled(stack) == status
    assert "192.168.0.0/24" in cloud.reason(stack, "Subnet", "CREATE_FAILED")
    vpc = cloud.physical(stack, "Vpc")
    vpcs = [found["VpcId"] for found in cloud.client("ec2").describe_vpcs()["Vpcs"]]
    assert (vpc in vpcs) is left


def test_deletion_runs_in_reverse_order(cloud):
    chain = {"A": TOPIC, "B": {**TOPIC, "DependsOn": "A"}, "C": {**TOPIC, "DependsOn": ["A", "B"]}}
    stack = cloud.made(chain)
    assert cloud.deleted(stack) == "DELETE_COMPLETE"
    gone = [who for who, status, _ in cloud.history(stack) if status == "DELETE_COMPLETE"]
    assert gone[:3] == ["C", "B", "A"]


def test_a_deleted_stack_is_known_by_its_id_only_and_its_name_is_free(cloud):
    stack = cloud.made({"Topic": TOPIC})
    name = cloud.describe(stack)["StackName"]
    cloud.deleted(stack)
    assert cloud.describe(stack)["StackStatus"] == "DELETE_COMPLETE"
    assert cloud.events(stack)
    with pytest.raises(ClientError, match=f"Stack with id {name} does not exist"):
        cloud.describe(name)
    assert cloud.made({"Topic": TOPIC}, StackName=name) != stack
    cloud.cloudformation.delete_stack(StackName="never-was")  # as in AWS, no error


def test_deleting_while_creating_cancels_the_creation(cloud):
    stack = cloud.create({"Handle": HANDLE, "Wait": waits(), "Topic": TOPIC, "After": {**TOPIC, "DependsOn": "Wait"}})
    cloud.engine.idle()
    handle = cloud.physical(stack, "Handle")
    assert cloud.deleted(stack) == "DELETE_COMPLETE"
    assert cloud.reason(stack, "Wait", "CREATE_FAILED") == "Resource creation cancelled"
    assert "After" not in {who for who, _, _ in cloud.history(stack)}
    assert put(handle, {"Status": "SUCCESS", "UniqueId": "late"}) == 403


def test_a_resource_that_cannot_be_deleted_has_a_reason_and_can_be_kept(cloud):
    network = {
        "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.0.0.0/16"}},
        "Subnet": {
            "Type": "AWS::EC2::Subnet",
            # What it depends on is deleted although it can't be (docs/aws-behaviour.md 1.36).
            "DependsOn": "Topic",
            "Properties": {"VpcId": {"Ref": "Vpc"}, "CidrBlock": "10.0.1.0/24"},
        },
        "Topic": TOPIC,
    }
    stack, ec2 = cloud.made(network), cloud.client("ec2")
    interface = ec2.create_network_interface(SubnetId=cloud.physical(stack, "Subnet"))["NetworkInterface"]
    assert cloud.deleted(stack) == "DELETE_FAILED"
    assert "has dependencies and cannot be deleted" in cloud.reason(stack, "Subnet", "DELETE_FAILED")
    assert "has dependencies and cannot be deleted" in cloud.reason(stack, "Vpc", "DELETE_FAILED")
    assert cloud.describe(stack)["StackStatusReason"] == "The following resource(s) failed to delete: [Subnet, Vpc]. "
    assert "Topic" in [who for who, status, _ in cloud.history(stack) if status == "DELETE_COMPLETE"]
    ec2.delete_network_interface(NetworkInterfaceId=interface["NetworkInterfaceId"])
    assert cloud.deleted(stack) == "DELETE_COMPLETE"


def test_deletion_policies(cloud):
    kept = {**TOPIC, "DeletionPolicy": "Retain"}
    except_on_create = {**TOPIC, "DeletionPolicy": "RetainExceptOnCreate"}
    stack = cloud.made({"Kept": kept, "Other": except_on_create})
    cloud.deleted(stack)
    statuses = {who: status for who, status, _ in cloud.history(stack)}
    assert statuses["Kept"] == statuses["Other"] == "DELETE_SKIPPED"
    failing = {"Kept": kept, "Other": except_on_create, "Handle": HANDLE, "Wait": waits(Timeout="5")}
    stack = cloud.create(failing)
    cloud.engine.idle()
    cloud.clock.advance(6)
    cloud.settled(stack)
    statuses = {who: status for who, status, _ in cloud.history(stack)}
    assert (statuses["Kept"], statuses["Other"]) == ("DELETE_SKIPPED", "DELETE_COMPLETE")


def test_termination_protection(cloud):
    stack = cloud.made({"Topic": TOPIC}, EnableTerminationProtection=True)
    with pytest.raises(ClientError, match="TerminationProtection is enabled"):
        cloud.cloudformation.delete_stack(StackName=stack)


def test_conditions_leave_resources_and_outputs_out(cloud):
    sections = {
        "Parameters": {"Big": {"Type": "String", "Default": "no"}},
        "Conditions": {"IsBig": {"Fn::Equals": [{"Ref": "Big"}, "yes"]}},
        "Outputs": {
            "Size": {"Value": {"Fn::If": ["IsBig", {"Ref": "Extra"}, "small"]}},
            "Only": {"Condition": "IsBig", "Value": {"Ref": "Extra"}},
        },
    }
    resources = {
        "Extra": {**TOPIC, "Condition": "IsBig"},
        "Topic": {
            "Type": "AWS::SNS::Topic",
            "DependsOn": "Extra",
            "Properties": {"DisplayName": {"Fn::If": ["IsBig", {"Ref": "Extra"}, {"Ref": "AWS::NoValue"}]}},
        },
    }
    assert cloud.outputs(cloud.made(resources, sections=sections)) == {"Size": "small"}
    big = cloud.made(resources, sections=sections, Parameters=[{"ParameterKey": "Big", "ParameterValue": "yes"}])
    assert cloud.outputs(big)["Only"].startswith("arn:aws:sns:")


@pytest.mark.parametrize("name", ["Rules", "Hooks", "Transform"])
def test_a_resource_may_have_the_name_of_a_section(cloud, name):
    assert cloud.physical(cloud.made({name: TOPIC}), name)


def test_a_wait_handle_takes_only_what_s3_would_take(cloud):
    stack = cloud.create({"Handle": HANDLE, "Wait": waits()})
    handle = cloud.idle_physical(stack, "Handle")
    good = {"Status": "SUCCESS", "UniqueId": "me"}
    assert put(handle, good, content_type="application/json") == 403
    assert put(handle[:-1], good) == 403
    assert put(handle, good) == 200
    assert cloud.settled(stack) == "CREATE_COMPLETE"


def test_the_same_request_sent_twice_makes_one_stack(cloud):
    given = {"StackName": "told-twice", "ClientRequestToken": "same"}
    assert cloud.create({"Topic": TOPIC}, **given) == cloud.create({"Topic": TOPIC}, **given)


def test_more_events_than_a_page(cloud):
    stack = cloud.made({f"Topic{number}": TOPIC for number in range(60)})
    assert len(cloud.events(stack)) == 60 * 3 + 2
    pages = cloud.cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack)
    assert len([item for page in pages for item in page["StackResourceSummaries"]]) == 60


def test_resources_are_made_and_deleted_with_the_rights_of_the_caller(cloud):
    """As a caller that may do everything but one call, which AWS's words then name."""

    def lacks(denied: str):
        return credentials.calling("AROA:me", lambda action, arn, keys: f"no {action} on {arn}" * (action == denied))

    with lacks("sns:TagResource"):
        stack = asked(cloud)
    cloud.engine.idle()
    assert cloud.engine.find(stack, REGION).status == "ROLLBACK_COMPLETE"
    assert cloud.reason(stack, "Topic", "CREATE_FAILED").startswith("no sns:TagResource on arn:aws:sns:us-east-1:")
    with lacks("sns:CreatePlatformApplication"):
        stack = asked(cloud)
    cloud.engine.idle()
    assert cloud.engine.find(stack, REGION).status == "CREATE_COMPLETE"
    with lacks("sns:DeleteTopic"):
        cloud.engine.delete(cloud.engine.find(stack, REGION))
    cloud.engine.idle()
    assert cloud.engine.find(stack, REGION).status == "DELETE_FAILED"
    cloud.engine.delete(cloud.engine.find(stack, REGION))
    cloud.engine.idle()
    assert cloud.engine.find(stack, REGION).status == "DELETE_COMPLETE"


def asked(cloud: Stacks) -> str:
    """Ask the engine for a stack of one topic, in this thread; return the stack's id."""
    body = json.dumps({"Resources": {"Topic": TOPIC}})
    return cloud.engine.create(StackRequest(f"rights-{next(NUMBERS)}", REGION, body)).stack_id
