"""A template that is sent through a bucket: the local cloud's S3 and CloudFormation, as `phalanx.clouds` uses them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import REGION, name
from stack_fakes import TOPIC, Stacks, stacks

from phalanx.clouds import buckets
from phalanx.clouds.aws import AwsCloud
from phalanx.errors import CloudError, SpecError

LARGE = json.dumps({"Description": "x", "Metadata": {"m": "y" * 60_000}, "Resources": {"Topic": TOPIC}})


class Here(AwsCloud):
    """The AWS cloud, connected to the local cloud of a test."""

    def __init__(self, running: Stacks) -> None:
        super().__init__(REGION)
        self._running = running
        # An object's URL begins with this client's address.
        self._s3 = running.new_client("s3")

    def client(self, service: str):
        return self._s3 if service == "s3" else self._running.client(service)


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as made:
        yield made


@pytest.fixture(scope="module")
def cloud(running) -> Here:
    return Here(running)


@pytest.fixture
def bucket(cloud) -> str:
    made = name("bucket")
    cloud.call("s3", "create_bucket", Bucket=made)
    return made


def objects(cloud: Here, bucket: str) -> list[str]:
    return [entry["Key"] for entry in cloud.call("s3", "list_objects_v2", Bucket=bucket).get("Contents", [])]


def test_a_large_template_makes_a_stack_and_leaves_the_bucket_empty(running, cloud, bucket):
    cloud.require_bucket(bucket)
    stack = cloud.create_stack(name("large"), LARGE, {}, bucket)
    assert objects(cloud, bucket) == []
    assert running.settled(stack) == "CREATE_COMPLETE"
    # As the head reads it: what was sent, whichever way.
    body = cloud.call("cloudformation", "get_template", StackName=stack)["TemplateBody"]
    assert body == json.loads(LARGE)


def test_the_object_is_encrypted_while_it_is_there(cloud, bucket):
    with buckets.lent(cloud, bucket, "demo", LARGE):
        (key,) = objects(cloud, bucket)
        assert cloud.call("s3", "head_object", Bucket=bucket, Key=key)["ServerSideEncryption"] == "AES256"


@pytest.mark.parametrize("way_out", [KeyboardInterrupt, CloudError])
def test_the_object_is_deleted_whatever_the_end(cloud, bucket, way_out):
    with pytest.raises(way_out), buckets.lent(cloud, bucket, "demo", LARGE):
        assert objects(cloud, bucket) == ["phalanx/demo.json"]
        raise way_out("stop")
    assert objects(cloud, bucket) == []


def test_a_bucket_with_versioning_keeps_no_version(cloud, bucket):
    cloud.call("s3", "put_bucket_versioning", Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    with buckets.lent(cloud, bucket, "demo", LARGE):
        pass
    left = cloud.call("s3", "list_object_versions", Bucket=bucket)
    assert not left.get("Versions") and not left.get("DeleteMarkers")


def test_what_a_killed_up_left_is_cleared_and_a_second_time_does_no_harm(cloud, bucket):
    cloud.call("s3", "put_object", Bucket=bucket, Key="phalanx/demo.json", Body=b"{}")
    for _ in range(2):
        cloud.clear_bucket(bucket, "demo")
    assert objects(cloud, bucket) == []
    cloud.clear_bucket("no-such-bucket", "demo")


def test_a_bucket_that_is_not_there_is_refused(cloud):
    with pytest.raises(SpecError, match="bucket: there is no S3 bucket nowhere"):
        cloud.require_bucket("nowhere")


def test_a_bucket_of_another_region_is_refused(cloud):
    made = name("bucket")
    there = {"LocationConstraint": "eu-west-1"}
    cloud.call("s3", "create_bucket", Bucket=made, CreateBucketConfiguration=there)
    with pytest.raises(SpecError, match=f"bucket: {made} is in eu-west-1, but the cluster is in us-east-1"):
        cloud.require_bucket(made)


def test_a_bucket_of_another_account_is_refused(running, cloud):
    from moto.s3.models import s3_backends

    made = name("bucket")
    s3_backends["999999999999"]["aws"].create_bucket(made, REGION)
    with pytest.raises(SpecError, match=f"bucket: {made} belongs to another account"):
        cloud.require_bucket(made)
    with pytest.raises(CloudError):
        cloud.create_stack(name("stack"), LARGE, {}, made)


@pytest.mark.parametrize(
    "opened", ["BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"]
)
def test_a_bucket_that_may_become_public_is_refused(cloud, bucket, opened):
    ways = {way: way != opened for way in buckets.CLOSED}
    cloud.call("s3", "put_public_access_block", Bucket=bucket, PublicAccessBlockConfiguration=ways)
    with pytest.raises(SpecError, match="does not block all public access"):
        cloud.require_bucket(bucket)


def test_a_bucket_without_any_block_or_encryption_is_refused(cloud, bucket):
    cloud.call("s3", "delete_bucket_encryption", Bucket=bucket)
    with pytest.raises(SpecError, match="has no default encryption"):
        cloud.require_bucket(bucket)
    cloud.call("s3", "delete_public_access_block", Bucket=bucket)
    with pytest.raises(SpecError, match="does not block all public access"):
        cloud.require_bucket(bucket)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://example.org/template.json", "TemplateURL must be a supported URL"),
        ("s3://bucket/template.json", "TemplateURL must be a supported URL"),
        ("{here}/nowhere/template.json", "S3 error: The specified bucket does not exist"),
        ("{here}/{bucket}/template.json", "S3 error: The specified key does not exist"),
        ("{here}/{bucket}/huge.json", "Template may not exceed 1000000 bytes in size"),
        ("{here}/{bucket}/empty.json", "Either Template URL or Template Body must be specified"),
    ],
)
def test_what_createstack_refuses_of_an_url(running, cloud, bucket, url, words):
    cloud.call("s3", "put_object", Bucket=bucket, Key="huge.json", Body=b"x" * 1_000_001)
    cloud.call("s3", "put_object", Bucket=bucket, Key="empty.json", Body=b"")
    there = url.format(here=running.context.url_host, bucket=bucket)
    with pytest.raises(ClientError, match=words):
        running.cloudformation.create_stack(StackName=name("stack"), TemplateURL=there)


@pytest.mark.parametrize(
    ("body", "words"),
    [("x" * 51_201, "length less than or equal to 51200"), ("", "Either Template URL or Template Body")],
)
def test_what_createstack_refuses_of_a_body(running, body, words):
    with pytest.raises(ClientError, match=words):
        running.cloudformation.create_stack(StackName=name("stack"), **({"TemplateBody": body} if body else {}))
