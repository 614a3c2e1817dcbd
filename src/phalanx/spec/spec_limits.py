"""Limits of phalanx.yaml's values, and patterns of AWS's ids in it."""

from __future__ import annotations

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
ROLE = r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9_+=,.@/-]{1,512}"
KEY = r"arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:(?:key/(?:mrk-)?[0-9a-f-]{32,36}|alias/[A-Za-z0-9/_-]{1,250})"
OWN_GROUP = "cluster"
RESERVATION = r"cr-[0-9a-f]{8,17}"
ANY_TYPE = "any of EC2's, such as p4d.24xlarge"
FILE_SYSTEM = r"fs-[0-9a-f]{8,40}"
NODE_TIMEOUT_S, METAL_TIMEOUT_S = 600, 1800
"""How long a node may take to answer unless the file says so: bare metal tests itself first (aws-behaviour 2.67)."""


def is_metal(instance_type: str) -> bool:
    """Whether a type is a whole machine without AWS's hypervisor, such as c5.metal or m7i.metal-24xl."""
    return ".metal" in instance_type
