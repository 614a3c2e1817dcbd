"""Limits of phalanx.yaml's values, and the rules of names and of AWS's ids in it."""

from __future__ import annotations

from phalanx.spec.spec_rules import matching

MOST_NODES = 1000
MOST_ZONES = 10
MOST_TYPES = 10
MOST_NETWORKS = 50
LONGEST_NODE_TIMEOUT_S = 45 * 60
LONGEST_LEASE_S = 365 * 24 * 3600
# Auto Scaling remembers six weeks, in which the last node must have ended.
LONGEST_DOWN_AFTER_S = 30 * 24 * 3600
LONGEST_IDLE_S = 7 * 24 * 3600
# AWS's limits are 10 policies of a role (its default) and 50 tags; phalanx and CloudFormation add tags of their own.
MOST_POLICIES = 10
MOST_TAGS = 40
POLICY = r"arn:aws[a-z-]*:iam::(?:aws|[0-9]{12}):policy/[A-Za-z0-9_+=,.@/-]{1,512}"
_ROLE = r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9_+=,.@/-]{1,512}"
KEY_ARN = r"arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:(?:key/(?:mrk-)?[0-9a-f-]{32,36}|alias/[A-Za-z0-9/_-]{1,250})"
OWN_GROUP = "cluster"
RESERVATION = r"cr-[0-9a-f]{8,17}"
ANY_TYPE = "any of EC2's, such as p4d.24xlarge"
FILE_SYSTEM = r"fs-[0-9a-f]{8,40}"
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
STACK_ROLE = matching(
    _ROLE,
    "'{}' is not the ARN of a role",
    "such as arn:aws:iam::123456789012:role/for-stacks",
    "the ARN of a role, such as arn:aws:iam::123456789012:role/for-stacks",
)
KEY = matching(
    KEY_ARN,
    "'{}' is not the ARN of a KMS key",
    "such as arn:aws:kms:us-east-1:123456789012:alias/clusters",
    "the ARN of a KMS key or of an alias, such as arn:aws:kms:us-east-1:123456789012:alias/clusters",
)
MAIL = matching(
    r"[A-Za-z0-9.!#%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})+",
    "'{}' is not a mail address",
    "write one such as me@example.com",
)
NODE_TIMEOUT_S, METAL_TIMEOUT_S = 600, 1800
"""How long a node may take to answer unless the file says so: bare metal tests itself first (aws-behaviour 2.67)."""


def is_metal(instance_type: str) -> bool:
    """Whether a type is a whole machine without AWS's hypervisor, such as c5.metal or m7i.metal-24xl."""
    return ".metal" in instance_type
