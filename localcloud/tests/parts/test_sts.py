"""Sessions of another role by AWS STS: which principals may have one, under which name, and for how long."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import Cloud, cloud, name

from localcloud.context import Issued
from localcloud.iam import credentials

SEND = {"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": "*"}


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Iterator[Cloud]:
    with cloud(tmp_path_factory.mktemp("cloud")) as made:
        yield made


def session(local: Cloud, *statements: dict) -> tuple[str, Issued]:
    """Create a role with these permissions; return its ARN and a session of it."""
    arn = arn_of(local, local.role("lambda.amazonaws.com", *statements))
    return arn, credentials.for_function(local.context, arn, name("function")).issued


def arn_of(local: Cloud, role: str) -> str:
    return f"arn:aws:iam::{local.context.account}:role/{role}"


def guest(local: Cloud, *trusted: str, effect: str = "Allow") -> str:
    """Create a role that may send and trusts these principals; return its name."""
    role = local.role("nobody.amazonaws.com", SEND)
    statement = {"Effect": effect, "Principal": {"AWS": list(trusted)}, "Action": "sts:AssumeRole"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    local.client("iam").update_assume_role_policy(RoleName=role, PolicyDocument=document)
    return role


def assumed(local: Cloud, issued: Issued, role: str, **options: Any) -> tuple[dict, Issued]:
    """Call AssumeRole; return its answer and the credentials in it."""
    given = {"RoleSessionName": "job-1@i-1", **options}
    answer = local.client("sts", issued).assume_role(RoleArn=arn_of(local, role), **given)
    keys = answer["Credentials"]
    return answer, Issued(keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"], role)


def refusal(call, *arguments, **named) -> dict:
    with pytest.raises(ClientError) as caught:
        call(*arguments, **named)
    return caught.value.response["Error"]


def test_a_role_that_the_trust_policy_names_needs_no_permission_of_its_own(local):
    arn, issued = session(local)
    role = guest(local, arn)
    answer, keys = assumed(local, issued, role)
    own = f"arn:aws:sts::{local.context.account}:assumed-role/{role}/job-1@i-1"
    assert answer["AssumedRoleUser"]["Arn"] == own
    known = local.client("sts", keys).get_caller_identity()
    role_id = local.client("iam").get_role(RoleName=role)["Role"]["RoleId"]
    assert (known["Arn"], known["UserId"], known["Account"]) == (own, f"{role_id}:job-1@i-1", local.context.account)


def test_the_session_is_judged_by_the_policies_of_its_own_role(local):
    arn, issued = session(local, {"Effect": "Allow", "Action": "sqs:*", "Resource": "*"})
    _, keys = assumed(local, issued, guest(local, arn))
    url, _ = local.queue()
    local.client("sqs", keys).send_message(QueueUrl=url, MessageBody="x")
    assert refusal(local.client("sqs", keys).receive_message, QueueUrl=url)["Code"] == "AccessDenied"


def test_nobody_else_gets_one(local):
    arn, _ = session(local)
    other, issued = session(local, {"Effect": "Allow", "Action": "*", "Resource": "*"})
    error = refusal(assumed, local, issued, guest(local, arn))
    assert error["Code"] == "AccessDenied"
    assert " is not authorized to perform: sts:AssumeRole on resource: arn:aws:iam::" in error["Message"]
    assert refusal(assumed, local, issued, "no-such-role")["Code"] == "AccessDenied"
    assert refusal(assumed, local, issued, guest(local, other, effect="Deny"))["Code"] == "AccessDenied"


def test_a_permissions_boundary_limits_what_a_role_s_policies_allow(local):
    receive = {"Effect": "Allow", "Action": "sqs:ReceiveMessage", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [receive]})
    boundary = local.client("iam").create_policy(PolicyName=name("boundary"), PolicyDocument=document)["Policy"]["Arn"]
    arn, issued = session(local, SEND, receive)
    url, _ = local.queue()
    local.client("sqs", issued).send_message(QueueUrl=url, MessageBody="before")
    local.client("iam").put_role_permissions_boundary(RoleName=arn.split("/")[1], PermissionsBoundary=boundary)
    assert local.client("sqs", issued).receive_message(QueueUrl=url)["Messages"][0]["Body"] == "before"
    error = refusal(local.client("sqs", issued).send_message, QueueUrl=url, MessageBody="after")
    assert "because no permissions boundary allows" in error["Message"]
    assert refusal(assumed, local, issued, guest(local, arn))["Code"] == "AccessDenied"


def test_where_the_account_is_trusted_the_role_needs_the_permission(local):
    role = guest(local, f"arn:aws:iam::{local.context.account}:root")
    _, without = session(local)
    assert refusal(assumed, local, without, role)["Code"] == "AccessDenied"
    _, allowed = session(local, {"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": arn_of(local, role)})
    assert assumed(local, allowed, role)


@pytest.mark.parametrize(
    "options", [{"RoleSessionName": "a job"}, {"DurationSeconds": 900 * 12 * 4}, {"RoleSessionName": "x" * 65}]
)
def test_names_and_lengths_have_bounds(local, options):
    arn, issued = session(local)
    assert refusal(assumed, local, issued, guest(local, arn), **options)["Code"] == "ValidationError"


def test_it_ends_within_the_hour(local):
    arn, issued = session(local)
    _, keys = assumed(local, issued, guest(local, arn))
    local.clock.advance(3600)
    assert refusal(local.client("sts", keys).get_caller_identity)["Code"] == "ExpiredToken"
    local.clock.advance(-3600)


def test_a_role_reaches_the_objects_of_its_prefix_alone(local):
    """By all calls on objects; copying reads another object, so it is refused rather than guessed."""
    s3 = local.client("s3")
    bucket, other = name("bucket"), name("bucket")
    for made in (bucket, other):
        s3.create_bucket(Bucket=made)
        s3.put_object(Bucket=made, Key="own/a b%2F", Body=b"x")
    own, prefix = f"arn:aws:s3:::{bucket}/own/*", {"StringLike": {"s3:prefix": "own/*"}}
    lists = {"Action": "s3:ListBucket", "Resource": f"arn:aws:s3:::{bucket}", "Condition": prefix}
    _, issued = session(
        local,
        {"Effect": "Allow", **lists},
        {"Effect": "Allow", "Action": ["s3:GetObject", "s3:PutObject"], "Resource": own},
    )
    limited = local.client("s3", issued)
    assert limited.list_objects_v2(Bucket=bucket, Prefix="own/")["Contents"][0]["Key"] == "own/a b%2F"
    assert limited.get_object(Bucket=bucket, Key="own/a b%2F")["Body"].read() == b"x"
    upload = limited.create_multipart_upload(Bucket=bucket, Key="own/large")["UploadId"]
    limited.upload_part(Bucket=bucket, Key="own/large", UploadId=upload, PartNumber=1, Body=b"x")
    for call, given, code in (
        (limited.list_objects_v2, {"Bucket": bucket}, "AccessDenied"),
        (limited.list_objects_v2, {"Bucket": other, "Prefix": "own/"}, "AccessDenied"),
        (limited.get_object, {"Bucket": other, "Key": "own/a b%2F"}, "AccessDenied"),
        (limited.put_object, {"Bucket": bucket, "Key": "theirs", "Body": b""}, "AccessDenied"),
        (limited.delete_object, {"Bucket": bucket, "Key": "own/a b%2F"}, "AccessDenied"),
        (limited.copy_object, {"Bucket": bucket, "Key": "own/c", "CopySource": f"{other}/own/a"}, "AccessDenied"),
    ):
        assert refusal(call, **given)["Code"] == code, (call, given)
