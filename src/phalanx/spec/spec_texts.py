"""The rules of keys with one text: names, a permissions boundary, a mail address."""

from __future__ import annotations

from phalanx.spec.spec_limits import POLICY
from phalanx.spec.spec_rules import matching

NAME = matching(
    # Auto Scaling writes a group's name into the subject of notifications, of which SNS takes 100 characters
    # (docs/aws-behaviour.md 3.30).
    r"[A-Za-z][A-Za-z0-9-]{0,47}",
    "'{}' can't be the name of a cluster",
    "begin with a letter, then letters, digits and '-'; at most 48",
    "a letter, then letters, digits and '-'; at most 48",
)
KEY_PAIR = matching(
    r"[\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?",
    "'{}' can't be the name of an EC2 key pair",
    "1 to 255 ASCII characters, no space at the ends",
)
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
