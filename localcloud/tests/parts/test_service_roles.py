"""A stack's operations act with the rights of the role that they name, as CloudFormation's do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import name
from stack_fakes import TOPIC, Stacks, stacks

CLOUDFORMATION = "cloudformation.amazonaws.com"
# What creates, reads and lists topics, by AWS's resource schema.
READS = ["sns:GetDataProtectionPolicy", "sns:ListSubscriptionsByTopic", "sns:ListTagsForResource", "sns:ListTopics"]
TOPICS = {"Effect": "Allow", "Action": ["sns:CreateTopic", "sns:TagResource", "sns:GetTopicAttributes", *READS]}
DELETING = {"Effect": "Allow", "Action": ["sns:DeleteTopic", "sns:GetTopicAttributes"]}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running


def trust(principal: dict[str, str]) -> dict[str, Any]:
    return {"Statement": [{"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}]}


def role(cloud: Stacks, principal: dict[str, str], *statements: dict[str, Any]) -> str:
    """Make a role with these rights; return its ARN."""
    api, made = cloud.client("iam"), name("role")
    answer = api.create_role(RoleName=made, AssumeRolePolicyDocument=json.dumps(trust(principal)))
    for number, statement in enumerate(statements):
        document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        api.put_role_policy(RoleName=made, PolicyName=f"p{number}", PolicyDocument=document)
    return answer["Role"]["Arn"]


def service_role(cloud: Stacks, *statements: dict[str, Any]) -> str:
    return role(cloud, {"Service": CLOUDFORMATION}, *({"Resource": "*", **one} for one in statements))


def refusal(call: Any, **given: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as refused:
        call(**given)
    error = refused.value.response["Error"]
    return error["Code"], error["Message"]


def test_a_deletion_has_the_rights_of_its_role_and_no_others(cloud):
    stack = cloud.made({"Topic": TOPIC})
    arn = cloud.physical(stack, "Topic")
    one = service_role(cloud, {**DELETING, "Resource": f"{arn}x"})
    cloud.cloudformation.delete_stack(StackName=stack, RoleARN=one)
    assert cloud.settled(stack) == "DELETE_FAILED"
    reason = cloud.reason(stack, "Topic", "DELETE_FAILED")
    assert "AWSCloudFormation is not authorized to perform: sns:DeleteTopic on resource: " + arn in reason
    other = service_role(cloud, {**DELETING, "Resource": arn})
    cloud.cloudformation.delete_stack(StackName=stack, RoleARN=other)
    assert cloud.settled(stack) == "DELETE_COMPLETE"


def test_a_stack_keeps_its_role_for_every_later_operation(cloud):
    made_with = service_role(cloud, TOPICS)
    stack = cloud.made({"Topic": TOPIC}, RoleARN=made_with)
    assert cloud.describe(stack)["RoleARN"] == made_with
    assert cloud.deleted(stack) == "DELETE_FAILED"
    assert "sns:DeleteTopic" in cloud.reason(stack, "Topic", "DELETE_FAILED")


@pytest.mark.parametrize("missing", READS)
def test_what_reads_a_new_resource_is_needed_to_create_it(cloud, missing):
    less = {**TOPICS, "Action": [one for one in TOPICS["Action"] if one != missing]}
    stack = name("stack")
    body = json.dumps({"Resources": {"Topic": TOPIC}})
    cloud.client("cloudformation").create_stack(
        StackName=stack, TemplateBody=body, RoleARN=service_role(cloud, less, DELETING)
    )
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    assert f"not authorized to perform: {missing}" in cloud.reason(stack, "Topic", "CREATE_FAILED")


@pytest.mark.parametrize("service", [CLOUDFORMATION, "lambda.amazonaws.com"])
def test_a_role_that_is_not_there_or_trusts_another_service_is_refused(cloud, service):
    stack = cloud.made({"Topic": TOPIC})
    arn = role(cloud, {"Service": service}) + ("x" if service == CLOUDFORMATION else "")
    code, message = refusal(cloud.cloudformation.delete_stack, StackName=stack, RoleARN=arn)
    assert (code, message) == ("ValidationError", f"Role {arn} is invalid or cannot be assumed")
    assert cloud.describe(stack)["StackStatus"] == "CREATE_COMPLETE"


def test_whoever_names_a_role_must_be_allowed_to_pass_it(cloud):
    stack = cloud.made({"Topic": TOPIC})
    passed = service_role(cloud, DELETING)
    may_delete = {"Effect": "Allow", "Action": "cloudformation:DeleteStack", "Resource": "*"}
    only_there = {"StringEquals": {"iam:PassedToService": CLOUDFORMATION}}
    may_pass = {"Effect": "Allow", "Action": "iam:PassRole", "Resource": passed, "Condition": only_there}
    account = {"AWS": f"arn:aws:iam::{cloud.context.account}:root"}
    without, allowed = (role(cloud, account, *given) for given in ((may_delete,), (may_delete, may_pass)))

    code, message = refusal(session(cloud, without).delete_stack, StackName=stack, RoleARN=passed)
    assert code == "AccessDenied" and f"is not authorized to perform: iam:PassRole on resource: {passed}" in message
    session(cloud, allowed).delete_stack(StackName=stack, RoleARN=passed)
    assert cloud.settled(stack) == "DELETE_COMPLETE"


def session(cloud: Stacks, arn: str) -> Any:
    issued = cloud.client("sts").assume_role(RoleArn=arn, RoleSessionName="me")["Credentials"]
    return cloud.client_of("cloudformation", issued)


def test_whoever_makes_a_stack_must_be_allowed_to_read_the_parameters_that_it_names(cloud):
    image = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
    cloud.client("ssm").put_parameter(Name="/mine/image", Value="ami-1", Type="String")
    account = {"AWS": f"arn:aws:iam::{cloud.context.account}:root"}
    makes = {"Effect": "Allow", "Action": ["cloudformation:*", *TOPICS["Action"]], "Resource": "*"}
    reads = {"Effect": "Allow", "Action": "ssm:GetParameters", "Resource": "arn:aws:ssm:*:*:parameter/mine/*"}
    without, allowed = (session(cloud, role(cloud, account, *given)) for given in ((makes,), (makes, reads)))

    def template(parameter: str) -> str:
        named = {"Type": "AWS::SSM::Parameter::Value<String>", "Default": parameter}
        return json.dumps({"Parameters": {"Image": named}, "Resources": {"Topic": TOPIC}})

    denied = ("ValidationError", "AccessDenied. User doesn't have permission to call ssm:GetParameters")
    mine, public = template("/mine/image"), template(image)
    assert refusal(without.create_stack, StackName=name("stack"), TemplateBody=mine) == denied
    review = {"ChangeSetName": "first", "ChangeSetType": "CREATE"}
    assert refusal(without.create_change_set, StackName=name("stack"), TemplateBody=mine, **review) == denied
    assert refusal(allowed.create_stack, StackName=name("stack"), TemplateBody=public) == denied
    stack = name("stack")
    allowed.create_stack(StackName=stack, TemplateBody=mine)
    assert cloud.settled(stack) == "CREATE_COMPLETE"


def a_role(*actions: str) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Action": [*actions], "Resource": "*"}
    policy = {"PolicyName": "p", "PolicyDocument": {"Version": "2012-10-17", "Statement": [statement]}}
    trusted = {"Version": "2012-10-17", **trust({"Service": CLOUDFORMATION})}
    return {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": trusted, "Policies": [policy]}}


@pytest.mark.parametrize(("kept", "status"), [(True, "DELETE_COMPLETE"), (False, "DELETE_FAILED")])
def test_a_stack_that_deletes_its_own_role_first_is_stuck_and_one_that_keeps_it_is_not(cloud, kept, status):
    """Why the role that removes a forgotten cluster outlives it."""
    deletes = a_role("sns:DeleteTopic", "sns:GetTopicAttributes", "iam:*")
    own = {**deletes, **({"DeletionPolicy": "Retain"} if kept else {}), "DependsOn": "Topic"}
    stack = cloud.made({"Topic": TOPIC, "Own": own}, Capabilities=["CAPABILITY_IAM"])
    arn = cloud.client("iam").get_role(RoleName=cloud.physical(stack, "Own"))["Role"]["Arn"]
    cloud.cloudformation.delete_stack(StackName=stack, RoleARN=arn)
    assert cloud.settled(stack) == status
    if not kept:
        assert cloud.reason(stack, "Topic", "DELETE_FAILED").startswith(f"Role {arn} is invalid")
        code, message = refusal(cloud.cloudformation.delete_stack, StackName=stack)
        assert (code, message) == ("ValidationError", f"Role {arn} is invalid or cannot be assumed")
