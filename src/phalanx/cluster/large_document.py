"""A document that is too large for a request: it is in the spec's bucket until CloudFormation has read it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, TypeVar

from phalanx.aws import s3_objects
from phalanx.aws.model import InBucket
from phalanx.cluster.stack import Note
from phalanx.errors import CloudError, PhalanxError
from phalanx.spec.spec_bucket import FOLDER
from phalanx.template import is_large

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws
    from phalanx.spec.spec import ClusterSpec

_T = TypeVar("_T")
_UNREADABLE = "S3 error: Access Denied"


def send(
    cloud: Aws, spec: ClusterSpec, document: str, request: Callable[[str | InBucket], _T]
) -> Generator[Note, None, _T]:
    """Request with the document or, above the limit, from the spec's bucket; it is deleted in any case.

    Raises SpecError if the bucket does not suit.
    """
    if spec.bucket is None or not is_large(document):
        return request(document)
    bucket = cloud.site.require_private_bucket(spec.bucket)
    # Nobody can replace the object ahead of time, and no other `up` has the same one.
    url = f"s3://{spec.bucket}/{FOLDER}{spec.name}-{secrets.token_hex(16)}.json"
    yield Note(f"the document has {len(document.encode()):,} bytes: it goes through {url}, which is deleted afterwards")
    may_be_there = True
    try:
        try:
            s3_objects.put(cloud, url, document, bucket)
        except CloudError as error:
            may_be_there = not error.was_refused
            raise
        return _requested(request, InBucket(url, document))
    finally:
        if may_be_there:
            yield from _deleted(cloud, url, bucket.owner)


def _requested(request: Callable[[InBucket], _T], sent: InBucket) -> _T:
    """Request; explain CloudFormation's refusal, which does not say whose rights it lacks (aws-behaviour 1.26)."""
    try:
        return request(sent)
    except CloudError as error:
        if _UNREADABLE in error.message:
            error.hint = (
                f"CloudFormation reads {sent.url} with your rights: s3:GetObject, and kms:Decrypt where a KMS key of "
                "yours encrypts it. A policy of the bucket may deny it, too."
            )
        raise


def _deleted(cloud: Aws, url: str, owner: str) -> Iterator[Note]:
    """Delete the object; say what is left if that fails, or if Ctrl-C interrupts it."""
    try:
        s3_objects.delete(cloud, url, owner)
    except (PhalanxError, KeyboardInterrupt) as error:
        reason = error.message if isinstance(error, PhalanxError) else "interrupted"
        yield Note(f"warning: {url} may be left: {reason}. `aws s3 rm {url}` deletes it")
        if isinstance(error, KeyboardInterrupt):
            raise
