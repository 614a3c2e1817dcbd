"""A stack's document on its way through a bucket, where CloudFormation reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PrivateBucket:
    """What writing to a bucket names: the account that owns it, and how it encrypts, in S3's words."""

    owner: str
    encryption: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class InBucket:
    """A document, and where in S3 it is for CloudFormation."""

    url: str
    document: str
