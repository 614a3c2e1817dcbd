"""The S3 buckets that a spec names: whether jobs could use them, and whether a document may go through one.

That one must be this account's, in its region, private and encrypted.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from phalanx.aws.model import PrivateBucket
from phalanx.aws.refusals import is_denied
from phalanx.errors import CloudError, Mistakes, SpecError
from phalanx.plan.mounted_data import MOST_COUNTED, Contents
from phalanx.spec.cloud_names import is_local
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_data import mounted, places

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_REGION = "x-amz-bucket-region"
_BLOCKS = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
_DEFAULT = "ApplyServerSideEncryptionByDefault"
_AES = '\'{"Rules":[{"ApplyServerSideEncryptionByDefault":{"SSEAlgorithm":"AES256"}}]}\''


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


def require_private(api: Aws, bucket: str) -> PrivateBucket:
    """Return what writing to the bucket names. Raises SpecError with all that speaks against it."""
    account = api.call("sts", "get_caller_identity")["Account"]
    _require_own(api, bucket, account)
    mistakes = Mistakes()
    mistakes.check(_require_block, api, bucket, account)
    mistakes.check(_require_no_public_policy, api, bucket)
    encryption = mistakes.check(_require_encryption, api, bucket)
    mistakes.report()
    return PrivateBucket(account, encryption or {})


def _require_own(api: Aws, bucket: str, account: str) -> None:
    """Another account could replace the document before CloudFormation reads it (docs/aws-behaviour.md 1.27)."""
    status, region = look(api, bucket, ExpectedBucketOwner=account)
    if status == 404:
        raise SpecError(
            f"bucket: there is no bucket {bucket}",
            f"Name another bucket, or make it: `{_shell(api)}aws s3 mb s3://{bucket} --region {api.region}`.",
            code="no-bucket",
        )
    if region != api.region:
        raise SpecError(
            f"bucket: {bucket} is in {region}, and the cluster in {api.region}",
            f"Name another bucket, or make one: `{_shell(api)}aws s3 mb s3://NAME --region {api.region}`.",
            code="bucket-elsewhere",
        )
    if status == 403:
        raise SpecError(
            f"bucket: these AWS credentials may not list {bucket}, or another account owns it",
            "Name another bucket, or request a policy that allows s3:ListBucket on this bucket.",
            code="bucket-denied",
        )


def _require_block(api: Aws, bucket: str, account: str) -> None:
    """Require that all public access is blocked, by the bucket's settings or the account's."""
    asked, action = "ask what blocks public access to", "s3:GetBucketPublicAccessBlock on this bucket"
    own = _ask(api, "s3", "get_public_access_block", f"{asked} {bucket}", action, Bucket=bucket)
    missing = [one for one in _BLOCKS if not _blocks(own).get(one)]
    if missing and not is_local(api.name):
        action = "s3:GetAccountPublicAccessBlock"
        of_all = _ask(api, "s3control", "get_public_access_block", f"{asked} this account", action, AccountId=account)
        missing = [one for one in missing if not _blocks(of_all).get(one)]
    if missing:
        settings = ",".join(f"{one}=true" for one in _BLOCKS)
        raise SpecError(
            f"bucket: {bucket} does not block all public access ({', '.join(missing)})",
            f"Name another bucket, or change this one, unless somebody reads it publicly: `{_shell(api)}aws s3api "
            f"put-public-access-block --bucket {bucket} --public-access-block-configuration {settings}`.",
            code="bucket-public",
        )


def _blocks(answer: Mapping[str, Any] | None) -> Mapping[str, bool]:
    return (answer or {}).get("PublicAccessBlockConfiguration", {})


def _require_no_public_policy(api: Aws, bucket: str) -> None:
    asked, action = f"ask whether everybody may use {bucket}", "s3:GetBucketPolicyStatus on this bucket"
    found = _ask(api, "s3", "get_bucket_policy_status", asked, action, Bucket=bucket)
    if (found or {}).get("PolicyStatus", {}).get("IsPublic"):
        raise SpecError(
            f"bucket: {bucket} has a policy that lets everybody in",
            f"Name another bucket, or have its owner change the policy: `{_shell(api)}aws s3api "
            f"get-bucket-policy --bucket {bucket}` shows it.",
            code="bucket-public",
        )


def _require_encryption(api: Aws, bucket: str) -> dict[str, str]:
    """Require a default encryption, which S3 itself has given every bucket since 2023 (docs/aws-behaviour.md 1.27).

    Return it as a put names it: a usual policy of a bucket denies one that does not.
    """
    asked, action = f"ask how {bucket} encrypts", "s3:GetEncryptionConfiguration on this bucket"
    found = _ask(api, "s3", "get_bucket_encryption", asked, action, Bucket=bucket)
    rules = (found or {}).get("ServerSideEncryptionConfiguration", {}).get("Rules", [])
    default = next((one["ApplyServerSideEncryptionByDefault"] for one in rules if _DEFAULT in one), None)
    if default is None:
        raise SpecError(
            f"bucket: {bucket} does not encrypt what it gets",
            f"Name another bucket, or change this one: `{_shell(api)}aws s3api put-bucket-encryption --bucket "
            f"{bucket} --server-side-encryption-configuration {_AES}`.",
            code="bucket-unencrypted",
        )
    named = {"ServerSideEncryption": default.get("SSEAlgorithm"), "SSEKMSKeyId": default.get("KMSMasterKeyID")}
    return {key: value for key, value in named.items() if value}


def _shell(api: Aws) -> str:
    """Return what has the AWS CLI ask the cloud of the file."""
    return 'eval "$(phalanx local env)"; ' if is_local(api.name) else ""


def _ask(api: Aws, service: str, operation: str, asked: str, needed: str, **arguments: str) -> dict[str, Any] | None:
    """Return the answer, None if there is no such setting. Raises SpecError where the question is not allowed."""
    try:
        return api.exists(service, operation, **arguments)
    except CloudError as error:
        if is_denied(error.__cause__):
            raise SpecError(
                f"bucket: these AWS credentials may not {asked}",
                f"Request a policy that allows {needed}.",
                code="bucket-denied",
            ) from error
        raise
