"""Objects of S3 that phalanx writes itself: what nodes of EMR start with, and documents too large for a request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from phalanx.errors import CloudError
from phalanx.objects.sent_document import InBucket, PrivateBucket

_SCHEME = "s3://"


class Place(Protocol):
    region: str

    def endpoint_url(self) -> str | None: ...


class Api(Place, Protocol):
    name: str

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]: ...
    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]: ...
    def exists(self, service: str, operation: str, **arguments: Any) -> dict[str, Any] | None: ...


class S3Objects:
    """What a cloud does with buckets and objects. See `phalanx.aws.protocol.Cloud`."""

    def put_object(self: Api, url: str, text: str, bucket: PrivateBucket | None = None) -> None:
        more = {**bucket.encryption, **_owned(bucket.owner)} if bucket else {}
        self.call("s3", "put_object", **_named(url), **more, Body=text.encode())

    def delete_object(self: Api, url: str, owner: str = "") -> None:
        self.call("s3", "delete_object", **_named(url), **_owned(owner))

    def require_bucket(self: Api, bucket: str, make: bool = False) -> None:  # noqa: ARG002 - the protocol's signature
        from phalanx.aws import buckets

        for reason in buckets.refusals(self, bucket):
            raise CloudError(reason, "`aws s3 ls` lists your buckets.")

    def require_private_bucket(self: Api, bucket: str) -> PrivateBucket:
        from phalanx.aws import private_buckets

        return private_buckets.require(self, bucket)


def as_template(api: Place, template: str | InBucket) -> dict[str, str]:
    """Return how a request to CloudFormation has a template: the document itself, or where it is in S3.

    The URL is path-style, at the region's own endpoint (docs/aws-behaviour.md 1.26).
    """
    if isinstance(template, str):
        return {"TemplateBody": template}
    from phalanx.aws import domains

    endpoint = api.endpoint_url() or f"https://s3.{api.region}.{domains.of(api.region)}"
    return {"TemplateURL": f"{endpoint}/{template.url.removeprefix(_SCHEME)}"}


def _owned(owner: str) -> dict[str, str]:
    return {"ExpectedBucketOwner": owner} if owner else {}


def _named(url: str) -> dict[str, str]:
    bucket, _, key = url.removeprefix(_SCHEME).partition("/")
    return {"Bucket": bucket, "Key": key}
