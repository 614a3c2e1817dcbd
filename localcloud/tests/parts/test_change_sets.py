"""Change sets of new stacks, as `aws cloudformation deploy` makes them: what they refuse, and how they end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import forget_resources
from stack_fakes import TOPIC, Stacks, stacks

from localcloud.daemon import faults


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


BAD = {"Topic": TOPIC, "Queue": {"Type": "AWS::SQS::Queue", "Properties": {"QueueNam": {"Ref": "Topic"}}}}
BODY = json.dumps({"Resources": {"Topic": TOPIC}})
NAME = {"logical_id": "Topic", "name": "NAME_CONFLICT_VALIDATION", "reason": "already exists"}


@pytest.fixture
def planted(cloud: Stacks) -> Iterator[Callable[..., None]]:
    """Plant what change sets meet; lift it afterwards."""

    def plant(takes_s: float = 0, **validation: str) -> None:
        found = [{**NAME, **validation}] if validation else []
        faults.apply(cloud.context, {"change_sets": {"takes_s": takes_s, "validations": found}})

    yield plant
    plant()


def reviewed(cloud: Stacks, stack: str, body: str = BODY, **given: Any) -> dict[str, Any]:
    api = cloud.cloudformation
    made = api.create_change_set(
        StackName=stack, ChangeSetName="new", ChangeSetType="CREATE", TemplateBody=body, **given
    )
    return api.describe_change_set(ChangeSetName=made["Id"])


def events(cloud: Stacks, **where: str) -> list[dict[str, Any]]:
    return cloud.cloudformation.describe_events(**where)["OperationEvents"]


def test_a_wrong_property_fails_the_change_set_and_its_events_say_where(cloud):
    made = reviewed(cloud, "wrong", json.dumps({"Resources": BAD}))
    assert (made["Status"], made["ExecutionStatus"]) == ("FAILED", "UNAVAILABLE")
    assert "AWS::EarlyValidation::PropertyValidation" in made["StatusReason"]
    (found,) = events(cloud, ChangeSetName=made["ChangeSetId"])
    assert (found["EventType"], found["ValidationFailureMode"]) == ("VALIDATION_ERROR", "FAIL")
    assert found["ValidationPath"] == "/Resources/Queue/Properties" and "QueueNam" in found["ValidationStatusReason"]
    with pytest.raises(ClientError, match="One of ChangeSetName, OperationId or StackName"):
        events(cloud)


def test_a_stack_in_review_shows_neither_tags_nor_parameters(cloud):
    made = reviewed(cloud, "bare", Tags=[{"Key": "a", "Value": "b"}])
    stack = cloud.describe("bare")
    assert (stack["Tags"], stack.get("Parameters", [])) == ([], [])
    assert made["Tags"] == [{"Key": "a", "Value": "b"}]
    cloud.cloudformation.execute_change_set(ChangeSetName=made["ChangeSetId"])
    assert cloud.describe("bare")["Tags"] == made["Tags"]


def test_a_change_set_that_is_being_made_can_not_be_executed_or_deleted(cloud, planted):
    planted(takes_s=30)
    made = reviewed(cloud, "slow")["ChangeSetId"]
    api = cloud.cloudformation
    for refused in (api.execute_change_set, api.delete_change_set):
        with pytest.raises(ClientError, match="InvalidChangeSetStatus"):
            refused(ChangeSetName=made)
    cloud.clock.advance(30)
    assert api.describe_change_set(ChangeSetName=made)["Status"] == "CREATE_COMPLETE"
    api.delete_change_set(ChangeSetName=made)


def test_a_warning_leaves_the_change_set_executable(cloud, planted):
    planted(mode="WARN")
    made = reviewed(cloud, "warned")
    assert made["ExecutionStatus"] == "AVAILABLE"
    assert [one["ValidationFailureMode"] for one in events(cloud, ChangeSetName=made["ChangeSetId"])] == ["WARN"]


def test_a_creation_that_a_validation_stops_makes_nothing_and_names_no_reason(cloud, planted):
    planted(mode="FAIL")
    stack = cloud.cloudformation.create_stack(StackName="stopped", TemplateBody=BODY)["StackId"]
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    shown = cloud.cloudformation.describe_stack_events(StackName=stack)["StackEvents"]
    assert {one["LogicalResourceId"] for one in shown} == {"stopped"}
    assert not any("already exists" in one.get("ResourceStatusReason", "") for one in shown)
    assert [one["ValidationStatusReason"] for one in events(cloud, StackName=stack)] == ["already exists"]


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
