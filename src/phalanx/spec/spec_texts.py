"""The rules of keys with one text of AWS's: a placement group, a permissions boundary, a mail address."""

from __future__ import annotations

from phalanx.spec.spec_limits import POLICY
from phalanx.spec.spec_rules import matching

PLACEMENT = matching(
    r"[A-Za-z0-9 _.:=+@-]{1,255}",
    "'{}' can't be the name of a placement group",
    "write cluster, or the name of a placement group",
    "cluster, or the name of a placement group",
)
BOUNDARY = matching(
    POLICY,
    "'{}' is not the ARN of a managed policy",
    "such as arn:aws:iam::123456789012:policy/boundary",
    "the ARN of a managed policy, such as arn:aws:iam::123456789012:policy/boundary",
)
MAIL = matching(
    r"[A-Za-z0-9.!#%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})+",
    "'{}' is not a mail address",
    "write one such as me@example.com",
)
