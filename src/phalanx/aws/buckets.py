"""The S3 buckets that a spec names: whether jobs could use them, before anything is created."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from phalanx.errors import CloudError, Mistakes, SpecError
from phalanx.plan.mounted_data import MOST_COUNTED, Contents
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_data import mounted, places

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_REGION = "x-amz-bucket-region"


def require_buckets(api: Aws, spec: ClusterSpec) -> None:
    """Raise SpecError with every bucket of `data` that is missing, forbidden to this user, or in another region."""
    mistakes = Mistakes()
    for place in places(spec.data):
        for code, reason in refusals(api, place.bucket, f" ({place.name})"):
            mistakes.add(SpecError(f"data: {reason}", "`aws s3 ls` lists your buckets.", code=code))
    mistakes.report()


def refusals(api: Aws, bucket: str, entry: str = "") -> Iterator[tuple[str, str]]:
    """Yield what is wrong: an error's code and its message."""
    status, region = look(api, bucket)
    if status == 404:
        yield "no-bucket", f"there is no bucket {bucket}{entry}"
    elif status == 403 and region == api.region:
        yield "bucket-denied", f"these AWS credentials may not list the bucket {bucket}{entry}"
    if region != api.region:
        yield "bucket-elsewhere", f"the bucket {bucket}{entry} is in {region}, and the cluster in {api.region}"


def look(api: Aws, bucket: str, **more: str) -> tuple[int, str]:
    """Return the bucket's region, and HeadBucket's status: its refusals have no text (docs/aws-behaviour.md 12.2)."""
    try:
        return 200, api.call("s3", "head_bucket", Bucket=bucket, **more).get("BucketRegion", api.region)
    except CloudError as error:
        refused = error.__cause__
        if not isinstance(refused, ClientError):
            raise
        answer = refused.response.get("ResponseMetadata", {})
        status, region = answer.get("HTTPStatusCode"), answer.get("HTTPHeaders", {}).get(_REGION, api.region)
        if status not in (403, 404) and region == api.region:
            raise
        return status, region


def count(api: Aws, data: Mapping[str, str] | None) -> dict[str, Contents]:
    """Count the objects of each prefix that is mounted and that this user may list, up to MOST_COUNTED of them."""
    found = {}
    for place in mounted(data):
        with contextlib.suppress(CloudError):
            found[place.name] = _contents(api, place.bucket, place.prefix)
    return found


def _contents(api: Aws, bucket: str, prefix: str) -> Contents:
    found = api.pages("s3", "list_objects_v2", "Contents", Bucket=bucket, Prefix=prefix)
    files = (one["Size"] for one in found if not one["Key"].endswith("/"))
    sizes = list(itertools.islice(files, MOST_COUNTED + 1))
    return Contents(min(len(sizes), MOST_COUNTED), sum(sizes[:MOST_COUNTED]), len(sizes) <= MOST_COUNTED)
