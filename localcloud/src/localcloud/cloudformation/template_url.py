"""A template in S3, as a request names it: the caller's own rights read it (docs/aws-behaviour.md 1.26)."""

from __future__ import annotations

import re

from moto.s3.exceptions import MissingBucket
from moto.s3.models import s3_backends

from localcloud.api import partitions
from localcloud.cloudformation.errors import Refused
from localcloud.context import Context
from localcloud.iam import credentials


def read(context: Context, region: str, url: str) -> str:
    """Return the object, by this cloud's own address or by AWS's; raise Refused with AWS's message."""
    hosts = (context.url_host, f"https://s3.{region}.{partitions.domain(region)}")
    found = re.fullmatch(rf"(?:{'|'.join(map(re.escape, hosts))})/(?P<bucket>[^/?]+)/(?P<key>[^?]+)", url)
    if found is None:
        raise Refused("TemplateURL must be a supported URL.")
    may = credentials.may()
    if may is not None and may("s3:GetObject", f"arn:aws:s3:::{found['bucket']}/{found['key']}", {}):
        raise Refused("S3 error: Access Denied")
    try:
        stored = s3_backends[context.account]["aws"].get_object(found["bucket"], found["key"])
    except MissingBucket:
        raise Refused("S3 error: The specified bucket does not exist") from None
    if stored is None:
        raise Refused("S3 error: The specified key does not exist.")
    return stored.value.decode()
