"""`phalanx plan` and `up` of a document that no request takes: it goes through a bucket, or is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import REGION, name
from large_documents import (
    ALL,
    FIXTURES,
    OF_BUCKETS,
    TAGS,
    Aws,
    keys,
    person,
    template_of,
    without,
)
from needed_rights import not_needed

from localcloud.iam import usage
from localcloud.iam.policy import Ask, statements_of
from phalanx.aws import s3_objects
from phalanx.errors import CloudUnreachable, SpecError
from phalanx.template import request_limits

aws, bucket, local, s3, use, write = FIXTURES


def test_without_a_bucket_plan_says_which_would_take_it(phalanx, aws, write):
    write()
    assert phalanx("plan") == 2
    phalanx.refused("document-too-large", "phalanx.yaml:5: tags: ", "`bucket: NAME`", REGION)


def test_plan_says_what_goes_through_the_bucket(phalanx, aws, write, bucket, s3):
    write(bucket)
    assert phalanx("plan") == 0
    words = f"The stack's document is too large for a request: `up` sends it through the bucket {bucket}."
    assert words in phalanx.out
    assert phalanx("plan", "--json") == 0
    assert json.loads(phalanx.out)["through_bucket"] == bucket
    assert keys(s3, bucket) == []
    write(f"s3://{bucket}")
    assert phalanx("plan") == 0
    write("is-not-there")
    assert phalanx("plan", "--offline") == 0, "nothing is asked"


def test_a_bucket_that_is_not_needed_is_not_asked_for(phalanx, aws, write):
    write("is-not-there", {"team": "vision"})
    assert phalanx("plan") == 0
    assert "goes through" not in phalanx.out and "through the bucket" not in phalanx.out


def test_up_makes_the_stack_and_leaves_nothing_in_the_bucket(phalanx, local, aws, write, bucket, s3):
    cluster = write(bucket)
    assert phalanx("up") == 130
    assert f"CloudFormation continues with stack {cluster}" in phalanx.err
    assert f"it goes through s3://{bucket}/phalanx/{cluster}-" in phalanx.err
    assert keys(s3, bucket) == []
    assert len(json.dumps(template_of(local, cluster))) > 51_200
    assert {one["Key"]: one["Value"] for one in local.describe(cluster)["Tags"]}.items() >= TAGS.items()


def test_what_cloudformation_refuses_leaves_nothing_in_the_bucket(phalanx, local, use, write, bucket, s3):
    cluster = write(bucket)
    assert phalanx("policy", "--offline") == 0
    printed = statements_of(json.loads(phalanx.out))
    use(person(local, without(printed, "cloudformation:CreateStack"))[1])
    assert phalanx("up") == 3
    assert "may not call cloudformation:CreateStack" in phalanx.err
    assert f"it goes through s3://{bucket}/phalanx/{cluster}-" in phalanx.err
    assert keys(s3, bucket) == []


def test_ctrl_c_leaves_nothing_in_the_bucket(phalanx, aws, write, bucket, s3):
    aws.interrupted = "create_stack"
    cluster = write(bucket)
    assert phalanx("up") == 130
    assert f"it goes through s3://{bucket}/phalanx/{cluster}-" in phalanx.err
    assert f"interrupted; stack {cluster} may have been requested" in phalanx.err
    assert keys(s3, bucket) == []


def test_an_object_that_can_not_be_deleted_is_named(phalanx, local, use, write, bucket, s3):
    cluster = write(bucket)
    assert phalanx("policy", "--offline") == 0
    use(person(local, without(statements_of(json.loads(phalanx.out)), "s3:DeleteObject"))[1])
    assert phalanx("up") == 130
    (left,) = keys(s3, bucket)
    assert f"warning: s3://{bucket}/{left} may be left" in phalanx.err
    assert f"`aws s3 rm s3://{bucket}/{left}` deletes it" in phalanx.err
    assert f"CloudFormation continues with stack {cluster}" in phalanx.err


def test_ctrl_c_while_it_is_deleted_says_what_is_left_and_that_the_stack_is_made(phalanx, aws, write, bucket, s3):
    aws.interrupted = "delete_object"
    cluster = write(bucket)
    assert phalanx("up") == 130
    (left,) = keys(s3, bucket)
    assert f"warning: s3://{bucket}/{left} may be left: interrupted. `aws s3 rm s3://{bucket}/{left}`" in phalanx.err
    assert f"CloudFormation continues with stack {cluster}" in phalanx.err


def test_a_put_that_is_refused_leaves_nothing_to_warn_of(phalanx, local, use, write, bucket, s3):
    write(bucket)
    assert phalanx("policy", "--offline") == 0
    printed = without(statements_of(json.loads(phalanx.out)), "s3:DeleteObject")
    use(person(local, without(printed, "s3:PutObject"))[1])
    assert phalanx("up") == 3
    assert "may not call s3:PutObject" in phalanx.err
    assert "may be left" not in phalanx.err


def test_a_put_whose_answer_is_lost_is_cleaned_up(phalanx, aws, write, bucket, s3, monkeypatch):
    put = s3_objects.put

    def lose_the_answer(*given: Any) -> None:
        put(*given)
        assert len(keys(s3, bucket)) == 1
        raise CloudUnreachable("S3 does not answer")

    monkeypatch.setattr(s3_objects, "put", lose_the_answer)
    write(bucket)
    assert phalanx("up") != 0
    assert "S3 does not answer" in phalanx.err
    assert keys(s3, bucket) == []


def test_a_put_names_the_bucket_s_owner_and_its_encryption(phalanx, local, aws, write, bucket, s3, monkeypatch):
    key = "arn:aws:kms:us-east-1:123456789012:key/1"
    encrypted = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}}
    s3.put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration={"Rules": [encrypted]})
    asked: dict[str, dict[str, Any]] = {}
    call = aws.call

    def noted(service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        asked[operation] = arguments
        return call(service, operation, **arguments)

    monkeypatch.setattr(aws, "call", noted)
    write(bucket)
    assert phalanx("up") == 130
    owner = {"ExpectedBucketOwner": local.context.account}
    put = {**owner, "ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key}
    assert asked["put_object"].items() >= put.items()
    assert asked["delete_object"].items() >= owner.items()


# ---- which buckets are refused


def far(s3: Any) -> str:
    made = name("far")
    s3.create_bucket(Bucket=made, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    return made


def opened(s3: Any) -> str:
    made = name("open")
    s3.create_bucket(Bucket=made)
    blocked = {one: one != "BlockPublicAcls" for one in ALL}
    s3.put_public_access_block(Bucket=made, PublicAccessBlockConfiguration=blocked)
    return made


def unblocked(s3: Any) -> str:
    made = name("old")
    s3.create_bucket(Bucket=made)
    s3.delete_public_access_block(Bucket=made)
    return made


def unencrypted(s3: Any) -> str:
    made = name("plain")
    s3.create_bucket(Bucket=made)
    s3.delete_bucket_encryption(Bucket=made)
    return made


@pytest.mark.parametrize(
    ("make", "said", "hint"),
    [
        (
            lambda s3: name("nowhere"),
            "there is no bucket {}",
            "Name another bucket, or make it: `aws s3 mb s3://{} --region us-east-1`",
        ),
        (far, "{} is in eu-west-1, and the cluster in us-east-1", "Name another bucket, or make one: `aws s3 mb"),
        (
            opened,
            "{} does not block all public access (BlockPublicAcls)",
            "Name another bucket, or change this one, unless somebody reads it publicly: `aws s3api",
        ),
        (unblocked, "{} does not block all public access (BlockPublicAcls, Ign", "Name another bucket, or"),
        (
            unencrypted,
            "{} does not encrypt what it gets",
            "Name another bucket, or change this one: `aws s3api put-bucket-",
        ),
    ],
)
def test_a_bucket_that_does_not_suit_is_refused_by_plan(phalanx, aws, write, s3, make, said, hint):
    made = make(s3)
    write(made)
    assert phalanx("plan") == 2
    assert f"phalanx.yaml:5: bucket: {said.format(made)}" in phalanx.err
    assert hint.format(made) in phalanx.err


def test_in_the_local_cloud_the_hint_has_the_aws_cli_ask_there(aws, monkeypatch):
    monkeypatch.setattr(aws, "name", "local")
    with pytest.raises(SpecError) as caught:
        aws.site.require_private_bucket("is-not-there")
    assert '`eval "$(phalanx local env)"; aws s3 mb s3://is-not-there --region us-east-1`' in caught.value.hint


def test_up_refuses_it_before_anything_is_made(phalanx, local, aws, write, s3):
    made = opened(s3)
    cluster = write(made)
    assert phalanx("up") == 2
    phalanx.refused("bucket-public", f"phalanx.yaml:5: bucket: {made}")
    assert keys(s3, made) == []
    with pytest.raises(ClientError, match="does not exist"):
        local.describe(cluster)


def test_the_account_s_settings_block_public_access_as_well(phalanx, aws, write, s3):
    made = opened(s3)
    write(made)
    aws.of_account.blocked = ALL[1:]
    assert phalanx("plan") == 2
    aws.of_account.blocked = ALL[:1]
    assert phalanx("plan") == 0


def test_without_the_right_to_ask_for_the_account_s_settings_it_is_named(phalanx, aws, write, s3, monkeypatch):
    def refuse(**_arguments: str) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "Access Denied"}}, "GetPublicAccessBlock")

    monkeypatch.setattr(aws.of_account, "get_public_access_block", refuse)
    write(opened(s3))
    assert phalanx("plan") == 3
    phalanx.refused("bucket-denied", "this account", "s3:GetAccountPublicAccessBlock")


def test_a_policy_that_lets_everybody_in_is_refused(phalanx, local, aws, write):
    statement = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::public/*"}
    made = {"Bucket": {"Ref": "Bucket"}, "PolicyDocument": {"Version": "2012-10-17", "Statement": [statement]}}
    stack = local.made(
        {"Bucket": {"Type": "AWS::S3::Bucket"}, "Policy": {"Type": "AWS::S3::BucketPolicy", "Properties": made}}
    )
    bucket = local.physical(stack, "Bucket")
    write(bucket)
    assert phalanx("plan") == 2
    phalanx.refused("bucket-public", f"phalanx.yaml:5: bucket: {bucket}", "policy")
    assert f"`aws s3api get-bucket-policy --bucket {bucket}`" in phalanx.err
    assert "delete-bucket-policy" not in phalanx.err


def test_a_bucket_of_another_account_is_refused(phalanx, local, aws, write, bucket, monkeypatch):
    """Its owner could replace the document before CloudFormation reads it. moto does not look at the owner."""

    def call(service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        if arguments.get("ExpectedBucketOwner") == local.context.account:
            status = {"HTTPStatusCode": 403, "HTTPHeaders": {}}
            refused = ClientError({"Error": {"Code": "403"}, "ResponseMetadata": status}, "HeadBucket")
            monkeypatch.setattr(aws.client("s3"), operation, lambda **_: (_ for _ in ()).throw(refused))
        return Aws.call(aws, service, operation, **arguments)

    monkeypatch.setattr(aws, "call", call)
    write(bucket)
    assert phalanx("plan") == 3
    phalanx.refused("bucket-denied", bucket, "another account")


def test_a_document_above_what_cloudformation_takes_from_s3_is_refused(phalanx, aws, write, bucket, monkeypatch):
    monkeypatch.setattr(request_limits, "LIMIT_IN_S3_BYTES", 60_000)  # no phalanx.yaml makes more than 1 MB today
    write(bucket)
    assert phalanx("plan") == 2
    phalanx.refused("document-too-large", "phalanx.yaml:6: tags: ", "has 1", "60,000 from S3")
    assert "bucket: NAME" not in phalanx.err


# ---- rights


def test_the_bucket_is_used_with_exactly_these_rights(phalanx, local, use, write, bucket, s3):
    write(bucket)
    assert phalanx("policy", "--offline") == 0
    printed = statements_of(json.loads(phalanx.out))
    role, me = person(local, printed)
    use(me)
    assert phalanx("up") == 130
    assert keys(s3, bucket) == []
    # The stack goes on, and writes lines that are not complete yet.
    lines = (local.context.state / usage.NAME).read_text().splitlines()
    asked = [json.loads(one) for one in lines if one.startswith(f'{{"role": "{role}", "action": "s3:')]
    mine = [one for one in printed if one["Sid"] in OF_BUCKETS]
    assert not_needed(mine, [Ask(one["action"], one["resource"], one["keys"]) for one in asked]) == []
    write(tags={"team": "vision"})
    assert phalanx("policy", "--offline") == 0
    assert "Document" not in "".join(one["Sid"] for one in json.loads(phalanx.out)["Statement"])


@pytest.mark.parametrize(
    "missing",
    [
        *("s3:ListBucket", "s3:GetBucketPublicAccessBlock", "s3:GetBucketPolicyStatus"),
        "s3:GetEncryptionConfiguration",
    ],
)
def test_a_check_that_is_not_allowed_names_the_right(phalanx, local, use, write, bucket, missing):
    write(bucket)
    assert phalanx("policy", "--offline") == 0
    use(person(local, without(statements_of(json.loads(phalanx.out)), missing))[1])
    assert phalanx("plan") == 3
    phalanx.refused("bucket-denied", "phalanx.yaml:5: bucket: ", missing, "on this bucket")


def test_without_the_right_to_read_it_cloudformation_refuses_the_document(phalanx, local, use, write, bucket, s3):
    write(bucket)
    assert phalanx("policy", "--offline") == 0
    use(person(local, without(statements_of(json.loads(phalanx.out)), "s3:GetObject"))[1])
    assert phalanx("up") == 3
    assert "S3 error: Access Denied" in phalanx.err
    assert re.search(r"CloudFormation reads s3://\S+ with your rights: s3:GetObject, and kms:Decrypt", phalanx.err)
    assert keys(s3, bucket) == []
