"""The key `bucket`: the S3 bucket through which `up` sends a document that is too large for a request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from phalanx.spec.spec_checks import WrongError, cut
from phalanx.spec.spec_data import places
from phalanx.spec.spec_key import Change, Needs, key
from phalanx.spec.spec_rules import text, whole

# S3's rules for general purpose buckets, and the names that it reserves (docs/aws-behaviour.md 12.11).
_RESERVED = r"xn--|sthree-|amzn-s3-demo-|[0-9]+(?:\.[0-9]+){3}$|.*(?:-s3alias|--ol-s3|\.mrap|--x-s3|--table-s3)$"
_NAME = rf"(?!{_RESERVED})(?=.{{3,63}}$)[a-z0-9](?:-*[a-z0-9]|[.](?=[a-z0-9]))*"
_SCHEME = "s3://"

FOLDER = "phalanx/"
"""Where documents are in it."""


def _checked(value: str) -> str:
    """Return the bucket's name."""
    name = value.removeprefix(_SCHEME)
    if not re.fullmatch(_NAME, name):
        raise WrongError(
            f"'{cut(value)}' can't be the name of an S3 bucket",
            "such as my-bucket, or s3://my-bucket",
            code="not-a-bucket",
        )
    return name


def _beside(value: str, above: Mapping[str, Any]) -> str:
    """Refuse a bucket in which a job could replace the document before CloudFormation reads it."""
    name = value.removeprefix(_SCHEME)
    for one in places(above.get("data")):
        is_there = one.prefix.startswith(FOLDER) or FOLDER.startswith(one.prefix)
        if one.bucket == name and one.is_writable and is_there:
            raise WrongError(
                f"jobs may write to {one.url} (data: {one.name}), and so replace the document in {FOLDER}",
                f"name another bucket, or a prefix outside of {FOLDER}",
                code="data-covers-bucket",
            )
    return value


KEY: Any = key(
    "Your own S3 bucket in the cluster's region, private and encrypted, for a CloudFormation document of more than "
    "51,200 bytes, which is too large for a request. Nobody else should be allowed to write there. `up` puts the "
    "document there, has CloudFormation read it, compares what it has read, and deletes it; smaller documents "
    "don't use it.",
    text(_checked, lambda: {"pattern": whole(rf"(?:{_SCHEME})?(?:{_NAME})")}, "the name of a bucket, or s3://NAME"),
    "my-bucket",
    change=Change(Needs.NOTHING, "with the next document that is too large for a request"),
    beside=_beside,
    default=None,
)
"""The key, as a field of ClusterSpec."""
