"""Objects of S3 that phalanx writes itself: what nodes of EMR start with, and documents too large for a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.objects.sent_document import InBucket, PrivateBucket

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_SCHEME = "s3://"


def put(api: Aws, url: str, text: str, bucket: PrivateBucket | None = None) -> None:
    """Write an object of S3; `url` is such as s3://bucket/key."""
    more = {**bucket.encryption, **_owned(bucket.owner)} if bucket else {}
    api.call("s3", "put_object", **_named(url), **more, Body=text.encode())


def delete(api: Aws, url: str, owner: str = "") -> None:
    """Delete an object of S3; no error when it is gone."""
    api.call("s3", "delete_object", **_named(url), **_owned(owner))


def as_template(api: Aws, template: str | InBucket) -> dict[str, str]:
    """Return how a request to CloudFormation has a template: the document itself, or where it is in S3.

    The URL is path-style, at the region's own endpoint (docs/aws-behaviour.md 1.26).
    """
    if isinstance(template, str):
        return {"TemplateBody": template}
    from phalanx.aws import domains  # here: it loads botocore

    endpoint = api.endpoint_url() or f"https://s3.{api.region}.{domains.of(api.region)}"
    return {"TemplateURL": f"{endpoint}/{template.url.removeprefix(_SCHEME)}"}


def _owned(owner: str) -> dict[str, str]:
    return {"ExpectedBucketOwner": owner} if owner else {}


def _named(url: str) -> dict[str, str]:
    bucket, _, key = url.removeprefix(_SCHEME).partition("/")
    return {"Bucket": bucket, "Key": key}
