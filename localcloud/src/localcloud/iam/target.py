"""A resource for which a call must be allowed, with the condition keys that belong to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from localcloud.iam.policy import Keys

ANY = "*"


@dataclass(frozen=True)
class Target:
    """A resource for which the call must be allowed, with the condition keys that belong to it."""

    arn: str
    keys: Keys = field(default_factory=dict)
