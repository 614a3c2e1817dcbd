"""A template in S3, as the console sends it, and what CreateStack refuses of templates by their size."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import name
from stack_fakes import TOPIC, Stacks, stacks

LARGE = json.dumps({"Description": "x", "Metadata": {"m": "y" * 60_000}, "Resources": {"Topic": TOPIC}})


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as made:
        yield made


@pytest.fixture(scope="module")
def s3(running):
    return running.new_client("s3")


@pytest.fixture
def bucket(s3) -> str:
    made = name("bucket")
    s3.create_bucket(Bucket=made)
    return made


def test_a_large_template_makes_a_stack(running, s3, bucket):
    s3.put_object(Bucket=bucket, Key="template.json", Body=LARGE.encode())
    there = f"{running.context.url_host}/{bucket}/template.json"
    stack = running.cloudformation.create_stack(StackName=name("large"), TemplateURL=there)["StackId"]
    assert running.settled(stack) == "CREATE_COMPLETE"


@pytest.mark.parametrize(
    "place",
    [
        "{here}/{bucket}",
        "https://s3.us-east-1.amazonaws.com/{bucket}",
        "https://{bucket}.s3.us-east-1.amazonaws.com",
        "https://s3.amazonaws.com/{bucket}",
        "https://{bucket}.s3.amazonaws.com",
    ],
)
def test_a_change_set_reads_a_large_template_too(running, s3, bucket, place):
    stack = running.made({"Topic": TOPIC})
    s3.put_object(Bucket=bucket, Key="template.json", Body=LARGE.replace('"Topic"', '"Other"').encode())
    there = f"{place.format(here=running.context.url_host, bucket=bucket)}/template.json"
    api = running.cloudformation
    made = api.create_change_set(StackName=stack, ChangeSetName="larger", TemplateURL=there)["Id"]
    s3.delete_object(Bucket=bucket, Key="template.json")
    changes = api.describe_change_set(ChangeSetName=made)["Changes"]
    assert {(one["ResourceChange"]["Action"], one["ResourceChange"]["LogicalResourceId"]) for one in changes} == {
        ("Add", "Other"),
        ("Remove", "Topic"),
    }
    api.execute_change_set(ChangeSetName=made)
    assert running.settled(stack) == "UPDATE_COMPLETE"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://s3.eu-west-1.amazonaws.com/{bucket}/huge.json", "TemplateURL must be a supported URL"),
        ("https://{bucket}.s3.eu-west-1.amazonaws.com/huge.json", "TemplateURL must be a supported URL"),
        ("https://{bucket}.s3.us-east-1.amazonaws.com.example.org/huge.json", "TemplateURL must be a supported URL"),
        ("https://example.org/.s3.us-east-1.amazonaws.com/huge.json", "TemplateURL must be a supported URL"),
        ("https://example.org/template.json", "TemplateURL must be a supported URL"),
        ("s3://bucket/template.json", "TemplateURL must be a supported URL"),
        ("{here}/nowhere/template.json", "S3 error: The specified bucket does not exist"),
        ("{here}/{bucket}/template.json", "S3 error: The specified key does not exist"),
        ("{here}/{bucket}/huge.json", "Template may not exceed 1000000 bytes in size"),
        ("{here}/{bucket}/empty.json", "Either Template URL or Template Body must be specified"),
    ],
)
def test_what_cloudformation_refuses_of_an_url(running, s3, bucket, url, message):
    s3.put_object(Bucket=bucket, Key="huge.json", Body=b"x" * 1_000_001)
    s3.put_object(Bucket=bucket, Key="empty.json", Body=b"")
    there = url.format(here=running.context.url_host, bucket=bucket)
    api = running.cloudformation
    with pytest.raises(ClientError, match=message):
        api.create_stack(StackName=name("stack"), TemplateURL=there)
    with pytest.raises(ClientError, match=message):
        api.create_change_set(StackName=name("stack"), ChangeSetName="new", ChangeSetType="CREATE", TemplateURL=there)


@pytest.mark.parametrize(
    ("body", "message"),
    [("x" * 51_201, "length less than or equal to 51200"), ("", "Either Template URL or Template Body")],
)
def test_what_createstack_refuses_of_a_body(running, body, message):
    with pytest.raises(ClientError, match=message):
        running.cloudformation.create_stack(StackName=name("stack"), **({"TemplateBody": body} if body else {}))
