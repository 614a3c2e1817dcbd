"""Change sets of new stacks, as `aws cloudformation deploy` makes them: what they refuse, and how they end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import forget_resources
from stack_fakes import TOPIC, Stacks, stacks


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running
        forget_resources(running.context.account)


def deployed(cloud: Stacks, body: str, stack: str) -> str:
    """Deploy a template as the AWS CLI does; return the stack's id."""
    api = cloud.cloudformation
    made = api.create_change_set(
        StackName=stack,
        ChangeSetName="new",
        ChangeSetType="CREATE",
        TemplateBody=body,
    )
    assert api.describe_change_set(ChangeSetName=made["Id"])["Status"] == "CREATE_COMPLETE"
    assert cloud.describe(stack)["StackStatus"] == "REVIEW_IN_PROGRESS"
    api.execute_change_set(ChangeSetName=made["Id"])
    return made["StackId"]


def test_a_type_that_is_not_served_is_named_before_anything_is_made(cloud):
    body = json.dumps({"Resources": {"Topic": TOPIC, "Zone": {"Type": "AWS::Route53::HostedZone", "Properties": {}}}})
    with pytest.raises(ClientError, match=r"does not support the resource types: \[AWS::Route53::HostedZone\]"):
        deployed(cloud, body, "unserved")
    with pytest.raises(ClientError, match="does not exist"):
        cloud.describe("unserved")


def test_a_change_set_that_changes_nothing_fails_with_awss_reason(cloud):
    body = json.dumps({"Resources": {"Topic": TOPIC}})
    stack = deployed(cloud, body, "same")
    assert cloud.settled(stack) == "CREATE_COMPLETE"
    again = cloud.cloudformation.create_change_set(StackName="same", ChangeSetName="again", TemplateBody=body)
    described = cloud.cloudformation.describe_change_set(ChangeSetName=again["Id"])
    assert (described["Status"], described["ExecutionStatus"]) == ("FAILED", "UNAVAILABLE")
    assert described["StatusReason"].startswith("The submitted information didn't contain changes.")
    with pytest.raises(ClientError, match="InvalidChangeSetStatus"):
        cloud.cloudformation.execute_change_set(ChangeSetName=again["Id"])


def test_a_change_set_has_its_own_template(cloud):
    api = cloud.cloudformation
    first, second = {"Resources": {"Topic": TOPIC}}, {"Resources": {"Topic": TOPIC, "Other": TOPIC}}
    stack = deployed(cloud, json.dumps(first), "templates")
    assert cloud.settled(stack) == "CREATE_COMPLETE"
    named = {"StackName": stack, "ChangeSetName": "larger"}
    made = api.create_change_set(**named, TemplateBody=json.dumps(second))["Id"]
    for which, body in (({"ChangeSetName": made}, second), (named, second), ({"StackName": stack}, first)):
        assert api.get_template(**which, TemplateStage="Original")["TemplateBody"] == body


def test_a_stack_in_review_can_be_deleted(cloud):
    body = json.dumps({"Resources": {"Topic": TOPIC}})
    made = cloud.cloudformation.create_change_set(
        StackName="reviewed", ChangeSetName="new", ChangeSetType="CREATE", TemplateBody=body
    )
    cloud.cloudformation.delete_stack(StackName="reviewed")
    assert cloud.describe(made["StackId"])["StackStatus"] == "DELETE_COMPLETE"


def test_a_stack_in_review_is_created_from_another_document_and_its_change_set_is_obsolete(cloud):
    api, given = cloud.cloudformation, {"ChangeSetName": "old", "ChangeSetType": "CREATE"}
    made = api.create_change_set(StackName="taken", TemplateBody=json.dumps({"Resources": {"Old": TOPIC}}), **given)
    stack = api.create_stack(StackName="taken", TemplateBody=json.dumps({"Resources": {"New": TOPIC}}))["StackId"]
    assert stack == made["StackId"]
    assert cloud.settled(stack) == "CREATE_COMPLETE"
    (made_of_it,) = api.list_stack_resources(StackName=stack)["StackResourceSummaries"]
    assert made_of_it["LogicalResourceId"] == "New"
    assert next(status for name, status, _ in cloud.history(stack) if name == "taken") == "REVIEW_IN_PROGRESS"
    found = api.describe_change_set(ChangeSetName=made["Id"])
    assert (found["Status"], found["ExecutionStatus"]) == ("CREATE_COMPLETE", "OBSOLETE")
    with pytest.raises(ClientError, match="InvalidChangeSetStatus"):
        api.execute_change_set(ChangeSetName=made["Id"])


def test_a_change_set_outlives_its_stack_whose_name_is_free_again(cloud):
    api, body = cloud.cloudformation, json.dumps({"Resources": {"Topic": TOPIC}})
    stack = deployed(cloud, body, "again")
    assert cloud.settled(stack) == "CREATE_COMPLETE"
    executed = api.describe_change_set(StackName=stack, ChangeSetName="new")["ChangeSetId"]
    again = r"already exists and cannot be created again with the changeSet \[new\]\."
    with pytest.raises(ClientError, match=rf"Stack \[again\] {again}"):
        deployed(cloud, body, "again")
    assert cloud.deleted(stack) == "DELETE_COMPLETE"
    assert deployed(cloud, body, "again") != stack
    found = api.describe_change_set(ChangeSetName=executed)
    assert (found["StackId"], found["ExecutionStatus"]) == (stack, "EXECUTE_COMPLETE")
    with pytest.raises(ClientError, match=again):
        deployed(cloud, body, stack)


def test_a_deleted_stack_is_not_updated_by_its_id(cloud):
    stack, body = cloud.made({"Topic": TOPIC}), json.dumps({"Resources": {"Other": TOPIC}})
    assert cloud.deleted(stack) == "DELETE_COMPLETE"
    gone = re.escape(f"Stack:{stack} is in DELETE_COMPLETE state and can not be updated.")
    with pytest.raises(ClientError, match=gone):
        cloud.cloudformation.update_stack(StackName=stack, TemplateBody=body)
    with pytest.raises(ClientError, match=gone):
        cloud.cloudformation.create_change_set(StackName=stack, ChangeSetName="late", TemplateBody=body)


def test_a_new_stack_has_no_previous_values(cloud):
    body = json.dumps({"Parameters": {"P": {"Type": "String", "Default": "x"}}, "Resources": {"Topic": TOPIC}})
    keep = [{"ParameterKey": "P", "UsePreviousValue": True}]
    with pytest.raises(ClientError, match="Cannot specify UsePreviousValue on Parameters when ChangeSetType is CREATE"):
        cloud.cloudformation.create_change_set(
            StackName="fresh", ChangeSetName="new", ChangeSetType="CREATE", TemplateBody=body, Parameters=keep
        )
