"""The rule of `data`: the S3 prefixes that jobs may read, or read and write, each under a name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.spec.makers import maker_of
from phalanx.spec.spec_checks import WrongError
from phalanx.spec.spec_groups import texts
from phalanx.spec.spec_key import Change, Needs, key

MOST = 10
"""An IAM role's inline policies have at most 10,240 characters (docs/aws-behaviour.md 12.1)."""

MOUNTED_AT = "/s3"
"""The directory of every node in which prefixes are mounted, each under its name."""

MOUNTS_BYTES = 600
"""What the mounted entries may take together: they are part of user data and, twice, of the template."""

_WRITABLE, _MOUNTED = "rw", "mount"
_BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
# Without what IAM reads as a wildcard or a variable in an ARN (* ? $), and without empty, "." and ".." segments.
_SEGMENT = r"(?!\.{1,2}(?:/|$| ))[A-Za-z0-9!_.()=+@,-]{1,128}"
_PREFIX = rf"{_SEGMENT}(?:/{_SEGMENT}){{0,7}}"
_URL = rf"s3://{_BUCKET}(?:/(?:{_PREFIX}/?)?)?(?: {_WRITABLE})?(?: {_MOUNTED})?"

PREFIX_URL = rf"s3://{_BUCKET}/{_PREFIX}/?"
"""One prefix, which is not the whole bucket."""

_RULE = texts(
    r"[a-z][a-z0-9_-]{0,31}",
    _URL,
    MOST,
    r"(?!)",
    f"1 to {MOST} names (lower-case letters, digits, - and _) with S3 URLs such as s3://bucket/prefix, which jobs may "
    "read; with ` rw` after the URL they may write there, too, and with ` mount` each node has it as a directory",
)


@dataclass(frozen=True)
class Place:
    """One entry of `data`. `prefix` is "" for the whole bucket, or ends with "/"."""

    name: str
    bucket: str
    prefix: str
    is_writable: bool
    is_mounted: bool = False

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def directory(self) -> str:
        """Where nodes have it, if it is mounted."""
        return f"{MOUNTED_AT}/{self.name}"


def places(data: Mapping[str, str] | None) -> Iterator[Place]:
    """Yield the entries of `data`."""
    for name, text in (data or {}).items():
        url, *words = text.split(" ")
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        folder = f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else ""
        yield Place(name, bucket, folder, _WRITABLE in words, _MOUNTED in words)


def mounted(data: Mapping[str, str] | None) -> list[Place]:
    """Return the entries that every node mounts."""
    return [place for place in places(data) if place.is_mounted]


def as_setting(data: Mapping[str, str] | None) -> str:
    """Return the mounted entries as nodes get them; "+" behind the names of those where jobs may write."""
    return ";".join(f"{one.name}{'+' if one.is_writable else ''}:{one.bucket}/{one.prefix}" for one in mounted(data))


def _beside(value: Mapping[str, str], above: Mapping[str, Any]) -> Mapping[str, str]:
    """Refuse mounts where nodes make none, or more than their settings can name."""
    if mounted(value) and not maker_of(above.get("cloud", "")).mounts:
        raise WrongError(
            "has ` mount`, and phalanx mounts nothing on EMR",
            "stage the prefix, or read s3:// with EMRFS",
            code="mount-on-emr",
        )
    if (size := len(as_setting(value))) > MOUNTS_BYTES:
        raise WrongError(
            f"mounts prefixes whose names have {size} characters together, and {MOUNTS_BYTES} are possible",
            "mount one prefix above them",
            code="too-long",
        )
    return value


KEY: Any = key(
    "S3 prefixes that the role of jobs may read or, with ` rw`, also write. The role has no other rights in S3. The "
    "buckets must be in the cluster's region. `phalanx data stage NAME` copies a prefix to the shared directory, as "
    "`data/NAME`. With ` mount`, every node has it as `/s3/NAME`.",
    _RULE,
    {"imagenet": "s3://my-bucket/imagenet", "runs": "s3://my-bucket/runs rw"},
    change=Change(Needs.UPDATE, "rights at once, in place; what is mounted, on each new machine"),
    beside=_beside,
    default=None,
)
"""The key, as a field of ClusterSpec."""
