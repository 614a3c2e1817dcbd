"""The user's S3 bucket, for a template that is too large for a request. It is checked, used, and left as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from phalanx.clouds.refusals import code
from phalanx.errors import CloudError, SpecError

CLOSED = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
"""S3's four settings that block public access."""


class Api(Protocol):
    region: str

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]: ...
    def exists(self, service: str, operation: str, **arguments: Any) -> dict[str, Any] | None: ...
    def client(self, service: str) -> Any: ...


def require_usable(api: Api, bucket: str) -> None:
    """Raise SpecError unless the bucket is in this account and the cluster's region, private and encrypted."""
    ours = _ours(api, bucket)
    region = _region(api, ours)
    if region != api.region:
        raise SpecError(
            f"bucket: {bucket} is in {region}, but the cluster is in {api.region}",
            f"Name one of your buckets in {api.region}.",
        )
    found = api.exists("s3", "get_public_access_block", **ours) or {}
    closed = found.get("PublicAccessBlockConfiguration", {})
    if not all(closed.get(way) for way in CLOSED):
        settings = ",".join(f"{way}=true" for way in CLOSED)
        command = f"aws s3api put-public-access-block --bucket {bucket} --public-access-block-configuration {settings}"
        raise SpecError(f"bucket: {bucket} does not block all public access", f"Run `{command}`.")
    if not api.exists("s3", "get_bucket_encryption", **ours):
        raise SpecError(f"bucket: {bucket} has no default encryption", "`aws s3api put-bucket-encryption` sets it.")


@contextmanager
def lent(api: Api, bucket: str, cluster: str, template: str) -> Iterator[str]:
    """Keep the template in the bucket, encrypted as the bucket specifies, during the block; yield its URL.

    CreateStack reads it before it answers, and the stack keeps a copy (docs/aws-behaviour.md 1.26).
    """
    place = {**_ours(api, bucket), "Key": _key(cluster)}
    made: dict[str, Any] = {}
    try:
        made = api.call("s3", "put_object", **place, Body=template.encode(), ContentType="application/json")
        yield f"{api.client('s3').meta.endpoint_url}/{bucket}/{_key(cluster)}"
    finally:
        version = {"VersionId": made["VersionId"]} if made.get("VersionId") else {}
        api.exists("s3", "delete_object", **place, **version)


def clear(api: Api, bucket: str, cluster: str) -> None:
    """Delete a template that a killed `up` may have left in the bucket."""
    api.exists("s3", "delete_object", **_ours(api, bucket), Key=_key(cluster))


def _ours(api: Api, bucket: str) -> dict[str, str]:
    """Return arguments that make S3 refuse a bucket that belongs to another account."""
    return {"Bucket": bucket, "ExpectedBucketOwner": api.call("sts", "get_caller_identity")["Account"]}


def _key(cluster: str) -> str:
    return f"phalanx/{cluster}.json"


def _region(api: Api, ours: dict[str, str]) -> str:
    try:
        return api.call("s3", "head_bucket", **ours)["BucketRegion"]
    except CloudError as error:
        # The answer to HEAD has no body, so the code is HTTP's.
        status = code(error.__cause__) if isinstance(error.__cause__, Exception) else ""
        bucket = ours["Bucket"]
        if status == "404":
            hint = "Create it, or name another of your buckets."
            raise SpecError(f"bucket: there is no S3 bucket {bucket}", hint) from error
        if status == "403":
            reason = f"bucket: {bucket} belongs to another account, or these credentials may not access it"
            raise SpecError(reason, "Name a bucket of your own account, and allow s3:ListBucket.") from error
        raise
