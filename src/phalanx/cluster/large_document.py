"""A document that no request takes: it is in the bucket that the spec names until CloudFormation has read it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, TypeVar

from phalanx.clouds.protocol import Cloud
from phalanx.cluster.note import Note
from phalanx.errors import PhalanxError

if TYPE_CHECKING:
    from phalanx.spec.spec import ClusterSpec

_T = TypeVar("_T")


def send(cloud: Cloud, spec: ClusterSpec, document: str, request: Callable[[str], _T]) -> Generator[Note, None, _T]:
    """Request with the document or, above the limit, with its URL in the spec's bucket; it is deleted in any case.

    Raises SpecError if the bucket does not suit.
    """
    from phalanx.template import is_large

    if spec.bucket is None or not is_large(document):
        return request(document)
    cloud.require_private_bucket(spec.bucket)
    content = document.encode()
    url = f"s3://{spec.bucket}/phalanx/{spec.name}-{hashlib.sha256(content).hexdigest()[:16]}.json"
    yield Note(f"the document has {len(content):,} bytes: it goes through {url}, which is deleted afterwards")
    try:
        # It may be there even if the answer was lost.
        cloud.put_object(url, document)
        return request(url)
    finally:
        yield from _deleted(cloud, url)


def _deleted(cloud: Cloud, url: str) -> Iterator[Note]:
    """Delete the object; say what is left if that fails, or if Ctrl-C interrupts it."""
    try:
        cloud.delete_object(url)
    except (PhalanxError, KeyboardInterrupt) as error:
        reason = error.message if isinstance(error, PhalanxError) else "interrupted"
        yield Note(f"warning: {url} may be left: {reason}. `aws s3 rm {url}` deletes it")
        if isinstance(error, KeyboardInterrupt):
            raise
