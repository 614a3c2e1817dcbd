"""AWS::S3 types: buckets, and their policies."""

from __future__ import annotations

import json
from typing import Any

from moto.s3.models import s3_backends

from localcloud.api import partitions
from localcloud.cloudformation.errors import ResourceFailed
from localcloud.cloudformation.resources.registry import Made, Request, all_or_nothing, resource
from localcloud.storage import kept_buckets

_ATTRIBUTES = "Arn DomainName DualStackDomainName RegionalDomainName WebsiteURL"
# What a bucket of the local cloud does, or what makes no difference here; anything else is refused.
_SERVED = frozenset(
    (
        *("AccessControl", "BucketEncryption", "BucketName", "OwnershipControls", "PublicAccessBlockConfiguration"),
        *("Tags", "VersioningConfiguration"),
    )
)


def s3(request: Request) -> Any:
    """Return moto's S3 backend, one for all regions."""
    return s3_backends[request.context.account][partitions.played()]


def _delete_bucket(request: Request, physical_id: str) -> None:
    backend = s3(request)
    if physical_id not in backend.buckets:
        return
    if backend.buckets[physical_id].keys:
        # docs/aws-behaviour.md 1.22
        raise ResourceFailed(f"The bucket you tried to delete is not empty ({physical_id}) (Service: S3)")
    backend.delete_bucket(physical_id)


@resource("AWS::S3::Bucket", _delete_bucket, _ATTRIBUTES)
def _bucket(request: Request) -> Made:
    properties, backend = request.properties, s3(request)
    if unserved := sorted(set(properties) - _SERVED):
        raise ResourceFailed(f"The local cloud's buckets do not support {', '.join(unserved)}")
    name = request.name("BucketName", 63).lower()
    backend.create_bucket(name, request.region)
    if not request.retained:
        kept_buckets.discard_at_exit(request.context.state, name)
    with all_or_nothing(_delete_bucket, request, name):
        backend.put_bucket_tagging(name, request.tag_map())
        if "VersioningConfiguration" in properties:
            backend.put_bucket_versioning(name, properties["VersioningConfiguration"]["Status"])
        if "PublicAccessBlockConfiguration" in properties:
            backend.put_public_access_block(name, dict(properties["PublicAccessBlockConfiguration"]))
    domain = partitions.domain(request.region)
    attributes = {
        "Arn": f"{partitions.arn()}:s3:::{name}",
        "DomainName": f"{name}.s3.{domain}",
        "DualStackDomainName": f"{name}.s3.dualstack.{request.region}.{domain}",
        "RegionalDomainName": f"{name}.s3.{request.region}.{domain}",
        "WebsiteURL": f"http://{name}.s3-website-{request.region}.{domain}",
    }
    return Made(name, attributes)


def _delete_policy(request: Request, physical_id: str) -> None:
    if physical_id in s3(request).buckets:
        s3(request).delete_bucket_policy(physical_id)


@resource("AWS::S3::BucketPolicy", _delete_policy)
def _policy(request: Request) -> Made:
    bucket = request.properties["Bucket"]
    s3(request).put_bucket_policy(bucket, json.dumps(request.properties["PolicyDocument"]).encode())
    return Made(bucket)
