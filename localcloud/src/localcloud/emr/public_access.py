"""EMR's block of public access: no cluster starts with a security group that is open to everybody, but for ssh.

It is on in every region unless it is changed there. Source: docs/aws-behaviour.md 7.10.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from moto.ec2.models import EC2Backend

from localcloud.api import partitions
from localcloud.emr.validation import Invalid

_EVERYBODY = ("0.0.0.0/0", "::/0")
_ALL_PORTS = (0, 65535)
DEFAULT: Mapping[str, Any] = {
    "BlockPublicSecurityGroupRules": True,
    "PermittedPublicSecurityGroupRuleRanges": [{"MinRange": 22, "MaxRange": 22}],
}


def described(configuration: Mapping[str, Any], since: datetime, account: str) -> dict[str, Any]:
    """Return the answer of GetBlockPublicAccessConfiguration."""
    metadata = {"CreationDateTime": since, "CreatedByArn": f"{partitions.arn()}:iam::{account}:root"}
    return {
        "BlockPublicAccessConfiguration": dict(configuration),
        "BlockPublicAccessConfigurationMetadata": metadata,
    }


def check(configuration: Mapping[str, Any], backend: EC2Backend, group_ids: Iterable[str]) -> None:
    """Raise Invalid for the first group with a public rule that the configuration does not permit."""
    if not configuration["BlockPublicSecurityGroupRules"]:
        return
    permitted = configuration.get("PermittedPublicSecurityGroupRuleRanges") or []
    ranges = [(int(one["MinRange"]), int(one.get("MaxRange") or one["MinRange"])) for one in permitted]
    for group_id in group_ids:
        for first, last in _public_ports(backend, group_id):
            if not any(low <= first and last <= high for low, high in ranges):
                raise Invalid(
                    f"Block public access does not allow the inbound rule of security group {group_id} that opens"
                    f" ports {first}-{last} to everybody"
                )


def _public_ports(backend: EC2Backend, group_id: str) -> Iterator[tuple[int, int]]:
    group: Any = backend.get_security_group_from_id(group_id)
    for rule in group.ingress_rules if group else ():
        if rule.cidr_ipv4 in _EVERYBODY or rule.cidr_ipv6 in _EVERYBODY:
            yield _ports(rule)


def _ports(rule: Any) -> tuple[int, int]:
    """Return the first and the last port of a rule."""
    if rule.ip_protocol == "-1" or rule.from_port in (None, -1):
        return _ALL_PORTS
    return int(rule.from_port), int(rule.to_port)
