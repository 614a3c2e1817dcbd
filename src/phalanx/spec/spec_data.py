"""The rule of `data`: the S3 prefixes that jobs may read, or read and write, each under a name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from phalanx.spec.spec_groups import texts

MOST = 10
"""An IAM role's inline policies have at most 10,240 characters (docs/aws-behaviour.md 12.1)."""

_WRITABLE = " rw"
_BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
# Without what IAM reads as a wildcard or a variable in an ARN (* ? $), and without empty, "." and ".." segments.
_SEGMENT = r"(?!\.{1,2}(?:/|$| ))[A-Za-z0-9!_.()=+@,-]{1,128}"
_PREFIX = rf"{_SEGMENT}(?:/{_SEGMENT}){{0,7}}"
_URL = rf"s3://{_BUCKET}(?:/(?:{_PREFIX}/?)?)?(?:{_WRITABLE})?"

PREFIX_URL = rf"s3://{_BUCKET}/{_PREFIX}/?"
"""One prefix, which is not the whole bucket."""

DATA = texts(
    r"[a-z][a-z0-9_-]{0,31}",
    _URL,
    MOST,
    r"(?!)",
    f"1 to {MOST} names (lower-case letters, digits, - and _) with S3 URLs such as s3://bucket/prefix, which jobs may "
    "read; with ` rw` after the URL they may write there, too",
)


@dataclass(frozen=True)
class Place:
    """One entry of `data`. `prefix` is "" for the whole bucket, or ends with "/"."""

    name: str
    bucket: str
    prefix: str
    is_writable: bool

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


def places(data: Mapping[str, str] | None) -> Iterator[Place]:
    """Yield the entries of `data`."""
    for name, text in (data or {}).items():
        bucket, _, prefix = text.removesuffix(_WRITABLE).removeprefix("s3://").partition("/")
        folder = f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else ""
        yield Place(name, bucket, folder, text.endswith(_WRITABLE))
