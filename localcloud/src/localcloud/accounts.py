"""Whose account the local cloud plays: an account of one's own, or one as companies and new users have them.

The profile is a file in the state directory, and counts from the next start. docs/accounts.md says what each has.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

OWN, FRESH, COMPANY = "own", "fresh", "landing-zone"
CHINA, GOV, EUSC = "china", "gov", "eusc"
PROFILES = {
    OWN: "everything is allowed",
    FRESH: "a new account: 5 vCPUs of each class, 5 Elastic IPs and 5 VPCs, and only the regions of every account",
    COMPANY: (
        "an organisation's account: a VPC is shared with it and it may make none, roles need a boundary, and instances "
        "have no metadata unless their launch asks for it"
    ),
    CHINA: "an account of AWS in China: regions cn-north-1 and cn-northwest-1",
    GOV: "an account of GovCloud: regions us-gov-west-1 and us-gov-east-1, and images in FIPS mode",
    EUSC: "an account of the European Sovereign Cloud: region eusc-de-east-1",
}
PARTITIONS = {CHINA: "aws-cn", GOV: "aws-us-gov", EUSC: "aws-eusc"}
"""The partitions of the accounts that are not in `aws`."""
REGIONS = {
    CHINA: ("cn-north-1", "cn-northwest-1"),
    GOV: ("us-gov-west-1", "us-gov-east-1"),
    EUSC: ("eusc-de-east-1",),
}
"""Their regions: an account has keys in one partition only (docs/aws-behaviour.md 6.1)."""
ACCOUNT, OWNER = "123456789012", "999999999999"
"""The account itself, and the one that owns the VPC which an organisation shares."""
# What the organisation's service control policy denies, because only the owner's account makes networks: a method of
# EC2Backend, and its action.
DENIED = {
    "allocate_address": "ec2:AllocateAddress",
    "attach_internet_gateway": "ec2:AttachInternetGateway",
    "create_internet_gateway": "ec2:CreateInternetGateway",
    "create_nat_gateway": "ec2:CreateNatGateway",
    "create_vpc": "ec2:CreateVpc",
}
BOUNDARY = f"arn:aws:iam::{ACCOUNT}:policy/landing-zone"
"""The policy that each role needs there as its permissions boundary."""
SUBNETS = ("subnet-0a11ce00000000001", "subnet-0a11ce00000000002")
"""The shared subnets, both private."""
REGION = "us-east-1"
_NAME = "account"


def read(state: Path) -> str:
    """Return the profile that is kept here; `own` without one. Raises ValueError for a damaged file."""
    try:
        return _known((state / _NAME).read_text().strip())
    except FileNotFoundError:
        return OWN


def keep(state: Path, profile: str) -> None:
    """Keep the profile for local clouds that start here later. Atomic. Raises ValueError for an unknown one."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = state / f"{_NAME}.{os.getpid()}"
    beside.write_text(_known(profile))
    beside.rename(state / _NAME)


def describe(profile: str) -> dict[str, Any]:
    """Return what a user needs to know of the account."""
    if profile in PARTITIONS:
        return {"profile": profile, "partition": PARTITIONS[profile], "regions": list(REGIONS[profile])}
    if profile != COMPANY:
        return {"profile": profile}
    return {"profile": profile, "region": REGION, "subnets": list(SUBNETS), "permissions_boundary": BOUNDARY}


def _known(profile: str) -> str:
    if profile not in PROFILES:
        raise ValueError(f"there is no account '{profile}'; the accounts are {', '.join(PROFILES)}")
    return profile
