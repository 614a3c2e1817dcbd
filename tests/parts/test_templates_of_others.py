"""Templates that phalanx did not make, in the shape of public samples: each is deployed as `aws cloudformation deploy`
does, with a change set, becomes complete, and leaves nothing after its deletion."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import account
import pytest
from botocore.exceptions import ClientError
from fleet_fakes import forget_resources, name
from stack_fakes import TOPIC, Stacks, stacks

TEMPLATES = sorted((Path(__file__).parents[1] / "data/templates").glob("*.yaml"))
GIVEN = {"KeyName": "mine", "CodeBucket": "bucket-with-code", "PublicKey": account.PUBLIC_KEY}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        running.client("ec2").import_key_pair(KeyName="mine", PublicKeyMaterial=account.PUBLIC_KEY.encode())
        running.client("s3").create_bucket(Bucket="bucket-with-code")
        running.client("s3").put_object(Bucket="bucket-with-code", Key="function.zip", Body=account.code())
        yield running
        forget_resources(running.context.account)


def deployed(cloud: Stacks, body: str, stack: str) -> str:
    """Deploy a template as the AWS CLI does; return the stack's id."""
    api = cloud.cloudformation
    asked = {one["ParameterKey"] for one in api.get_template_summary(TemplateBody=body)["Parameters"]}
    given = [{"ParameterKey": key, "ParameterValue": GIVEN[key]} for key in asked & set(GIVEN)]
    capabilities = ["CAPABILITY_NAMED_IAM"]
    made = api.create_change_set(
        StackName=stack,
        ChangeSetName="new",
        ChangeSetType="CREATE",
        TemplateBody=body,
        Parameters=given,
        Capabilities=capabilities,
    )
    assert api.describe_change_set(ChangeSetName=made["Id"])["Status"] == "CREATE_COMPLETE"
    assert cloud.describe(stack)["StackStatus"] == "REVIEW_IN_PROGRESS"
    api.execute_change_set(ChangeSetName=made["Id"])
    return made["StackId"]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_it_is_deployed_and_leaves_nothing(cloud, template):
    stack = deployed(cloud, template.read_text(), name(template.stem))
    assert cloud.settled(stack) == "CREATE_COMPLETE", cloud.history(stack)
    assert cloud.deleted(stack) == "DELETE_COMPLETE", cloud.history(stack)


def test_there_are_thirty():
    assert len(TEMPLATES) >= 30


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


def test_a_stack_in_review_can_be_deleted(cloud):
    body = json.dumps({"Resources": {"Topic": TOPIC}})
    made = cloud.cloudformation.create_change_set(
        StackName="reviewed", ChangeSetName="new", ChangeSetType="CREATE", TemplateBody=body
    )
    cloud.cloudformation.delete_stack(StackName="reviewed")
    assert cloud.describe(made["StackId"])["StackStatus"] == "DELETE_COMPLETE"
