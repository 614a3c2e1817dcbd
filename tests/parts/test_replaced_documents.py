"""Somebody else who may write to the bucket replaces the document before CloudFormation reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from error_codes import raises_code
from large_documents import (
    FIXTURES,
    TOPICS,
    TRUST,
    keys,
    person,
    without,
)
from stack_fakes import TOPIC

from localcloud.iam.policy import statements_of
from phalanx.aws import change_sets, s3_objects, stacks
from phalanx.aws.model import InBucket
from phalanx.errors import CloudError

aws, bucket, local, s3, use, write = FIXTURES


def replace(s3: Any, bucket: str, change: Callable[[dict[str, Any]], object]) -> Callable[[], None]:
    """Return what replaces the one document in the bucket by a changed one."""

    def replaced() -> None:
        (key,) = keys(s3, bucket)
        document = json.loads(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
        change(document)
        s3.put_object(Bucket=bucket, Key=key, Body=json.dumps(document).encode())

    return replaced


def with_a_role(document: dict[str, Any]) -> None:
    trust = {"Version": "2012-10-17", "Statement": [{**TRUST, "Principal": {"AWS": "*"}}]}
    document["Resources"]["Evil"] = {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": trust}}


def test_two_documents_never_have_the_same_name(phalanx, aws, write, bucket):
    aws.interrupted = "create_stack"
    write(bucket)
    sent = set()
    for _ in range(2):
        assert phalanx("up") == 130
        sent |= set(re.findall(r"s3://\S+-[0-9a-f]{32}\.json", phalanx.err))
    assert len(sent) == 2


def test_a_stack_of_a_replaced_document_is_deleted_at_once(phalanx, local, aws, write, bucket, s3):
    aws.before = {"create_stack": replace(s3, bucket, with_a_role)}
    cluster = write(bucket)
    assert phalanx("up") == 4
    phalanx.refused("document-replaced", bucket, f"`aws s3api get-bucket-policy --bucket {bucket}`")
    (stack,) = [one for one in local.cloudformation.list_stacks()["StackSummaries"] if one["StackName"] == cluster]
    assert f"Stack {stack['StackId']} is being deleted" in phalanx.err
    assert stack["StackStatus"].startswith("DELETE_")
    assert keys(s3, bucket) == []


def test_a_stack_that_can_not_be_compared_is_deleted(phalanx, local, use, write, bucket, s3):
    cluster = write(bucket)
    assert phalanx("policy", "--offline") == 0
    use(person(local, without(statements_of(json.loads(phalanx.out)), "cloudformation:GetTemplate"))[1])
    assert phalanx("up") == 4
    phalanx.refused("document-replaced", "can't be compared", "cloudformation:GetTemplate")
    (stack,) = [one for one in local.cloudformation.list_stacks()["StackSummaries"] if one["StackName"] == cluster]
    assert stack["StackStatus"].startswith("DELETE_")


def test_a_stack_that_can_not_be_deleted_is_named_and_not_followed(phalanx, aws, write, bucket, s3):
    def refuse() -> None:
        raise CloudError("cloudformation:DeleteStack was refused")

    aws.before = {"create_stack": replace(s3, bucket, with_a_role), "delete_stack": refuse}
    write(bucket)
    assert phalanx("up") == 4
    phalanx.refused("document-replaced", "could not be deleted", "`aws cloudformation delete-stack --stack-name arn:")


def test_ctrl_c_before_a_stack_is_compared_deletes_it(phalanx, local, aws, write, bucket):
    aws.interrupted = "get_template"
    cluster = write(bucket)
    assert phalanx("up") == 130
    (stack,) = [one for one in local.cloudformation.list_stacks()["StackSummaries"] if one["StackName"] == cluster]
    assert stack["StackStatus"].startswith("DELETE_")


@pytest.mark.parametrize("change", [with_a_role, lambda document: document.update(TOPICS)])
def test_an_update_to_a_replaced_document_is_forgotten(local, aws, bucket, s3, change):
    stack = local.made(TOPICS["Resources"])
    state = stacks.describe(aws, stack)
    url = f"s3://{bucket}/phalanx/document.json"
    wanted = json.dumps({"Resources": {**TOPICS["Resources"], "Other": TOPIC}})
    sent = InBucket(url, wanted)
    s3_objects.put(aws, url, wanted)
    replace(s3, bucket, change)()
    with raises_code("document-replaced", bucket, "Nothing was changed"):
        change_sets.review(aws, state, sent, {}, ())
    assert local.cloudformation.list_change_sets(StackName=stack)["Summaries"] == []
    s3_objects.put(aws, url, f" {wanted}")
    assert change_sets.review(aws, state, sent, {}, ()) is not None
