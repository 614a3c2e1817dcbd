"""The key `bucket`: its names, and how a request to CloudFormation names a document that is there."""

from __future__ import annotations

import pytest
from clusters import spec
from error_codes import raises_code

from phalanx.aws import s3_objects
from phalanx.aws.aws import Aws


@pytest.mark.parametrize("written", ["my-bucket", "s3://my-bucket", "a.b--c.3", "123", "b" * 63])
def test_a_bucket_is_its_name(written):
    assert spec(bucket=written).bucket == written.removeprefix("s3://")


@pytest.mark.parametrize(
    "written",
    [
        *("a/b", "s3://my-bucket/", "s3://my-bucket/prefix", "http://my-bucket", "My-bucket", "my_bucket", "ab"),
        *("my..bucket", "my-.bucket", "my.-bucket", "-my-bucket", "my-bucket-", "192.0.2.1", "my-bucket\n", "b" * 64),
        *("xn--my-bucket", "sthree-my-bucket", "amzn-s3-demo-bucket", "my-bucket-s3alias", "my-bucket--x-s3"),
        *("my-bucket--ol-s3", "my-bucket.mrap", "my-bucket--table-s3", ""),
    ],
)
def test_what_s3_takes_as_no_name_is_refused(written):
    with raises_code("not-a-bucket", "bucket: '"):
        spec(bucket=written)


@pytest.mark.parametrize(
    "entry", ["s3://my-bucket rw", "s3://my-bucket/phalanx rw mount", "s3://my-bucket/phalanx/runs/ rw"]
)
def test_a_bucket_in_which_jobs_could_replace_the_document_is_refused(entry):
    url = entry.partition(" ")[0]
    with raises_code("data-covers-bucket", "bucket: ", url, "(data: runs)"):
        spec(bucket="s3://my-bucket", data={"runs": entry})


@pytest.mark.parametrize("entry", ["s3://my-bucket", "s3://my-bucket/runs rw", "s3://other rw", "s3://my-bucket/ph rw"])
def test_a_bucket_in_which_jobs_write_elsewhere_suits(entry):
    assert spec(bucket="my-bucket", data={"runs": entry}).bucket == "my-bucket"


@pytest.mark.parametrize(
    ("region", "host"),
    [
        ("us-east-1", "s3.us-east-1.amazonaws.com"),
        ("eu-central-1", "s3.eu-central-1.amazonaws.com"),
        ("us-gov-west-1", "s3.us-gov-west-1.amazonaws.com"),
        ("cn-north-1", "s3.cn-north-1.amazonaws.com.cn"),
        ("eusc-de-east-1", "s3.eusc-de-east-1.amazonaws.eu"),
    ],
)
def test_a_document_in_s3_is_named_at_the_region_s_own_endpoint(region, host):
    """docs/aws-behaviour.md 1.26"""
    sent = s3_objects.InBucket("s3://my.bucket/phalanx/demo.json", "{}")
    named = s3_objects.as_template(Aws(region), sent)
    assert named == {"TemplateURL": f"https://{host}/my.bucket/phalanx/demo.json"}
    assert s3_objects.as_template(Aws(region), "{}") == {"TemplateBody": "{}"}
