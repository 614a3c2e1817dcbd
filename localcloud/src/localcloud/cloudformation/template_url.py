"""A template in S3, as a request names it: the caller's own rights read it (docs/aws-behaviour.md 1.26)."""

from __future__ import annotations

import re

from moto.s3.exceptions import MissingBucket
from moto.s3.models import s3_backends

from localcloud.api import partitions
from localcloud.cloudformation.errors import Refused
from localcloud.context import Context
from localcloud.iam import credentials

_AWS = "amazonaws.com"


def read(context: Context, region: str, url: str) -> str:
    """Return the object, by this cloud's own address or by AWS's; raise Refused with AWS's message."""
    # The bucket is the first part of the path or of the host ("Virtual hosting of buckets" in S3's user guide).
    # Outside of the partition aws, no host is without a region.
    domain = partitions.domain(region)
    s3 = rf"s3\.(?:{re.escape(region)}\.)?{re.escape(domain)}" if domain == _AWS else re.escape(f"s3.{region}.{domain}")
    places = (rf"(?:{re.escape(context.url_host)}|https://{s3})/([^/?]+)", rf"https://([a-z0-9][a-z0-9.-]+)\.{s3}")
    found = next(filter(None, (re.fullmatch(rf"{place}/(?P<key>[^?]+)", url) for place in places)), None)
    if found is None:
        raise Refused("TemplateURL must be a supported URL.")
    bucket = found[1]
    may = credentials.may()
    if may is not None and may("s3:GetObject", f"arn:aws:s3:::{bucket}/{found['key']}", {}):
        raise Refused("S3 error: Access Denied")
    try:
        stored = s3_backends[context.account]["aws"].get_object(bucket, found["key"])
    except MissingBucket:
        raise Refused("S3 error: The specified bucket does not exist") from None
    if stored is None:
        raise Refused("S3 error: The specified key does not exist.")
    return stored.value.decode()
