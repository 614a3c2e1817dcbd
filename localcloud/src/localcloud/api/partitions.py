"""AWS's partitions: which one the account is in that is played, and the domains of each (docs/aws-behaviour.md 6.1)."""

from __future__ import annotations

from localcloud import accounts

# Of regions, by the beginnings of their names; all others are in `aws`.
_PARTITIONS = {
    "cn-": "aws-cn",
    "us-gov-": "aws-us-gov",
    "eusc-": "aws-eusc",
    "us-iso-": "aws-iso",
    "us-isob-": "aws-iso-b",
}
_DOMAINS = {"aws-cn": "amazonaws.com.cn", "aws-eusc": "amazonaws.eu"}
_profile = [accounts.OWN]


def play(profile: str) -> None:
    """Say whose account is played: all its regions and ARNs are of one partition."""
    _profile[0] = profile


def played() -> str:
    """Return the partition of the account that is played, as its ARNs name it."""
    return accounts.PARTITIONS.get(_profile[0], "aws")


def home() -> str:
    """Return a region of the account that is played."""
    return accounts.REGIONS.get(_profile[0], (accounts.REGION,))[0]


def arn() -> str:
    """Return what each of its ARNs begins with: arn:aws, arn:aws-cn …"""
    return f"arn:{played()}"


def is_elsewhere(region: str) -> bool:
    """Whether a region is in a partition where the account's keys are unknown."""
    return _of(region) != played()


def of_principals() -> str:
    """Return how the names of services end that follow the partition: in China only."""
    return "amazonaws.com.cn" if played() == "aws-cn" else "amazonaws.com"


def ec2() -> str:
    """Return EC2's service principal."""
    return f"ec2.{of_principals()}"


def emr() -> str:
    """Return EMR's service principal (docs/aws-behaviour.md 7.21)."""
    return f"elasticmapreduce.{of_principals()}"


def domain(region: str) -> str:
    """Return what AWS::URLSuffix is in a region."""
    return _DOMAINS.get(_of(region), "amazonaws.com")


def _of(region: str) -> str:
    return next((name for start, name in _PARTITIONS.items() if region.startswith(start)), "aws")
