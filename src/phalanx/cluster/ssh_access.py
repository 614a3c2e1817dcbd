"""The rules of the head's security group: it drops all else, so that ssh would only time out."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from phalanx.aws import own_address, stacks
from phalanx.aws.refusals import code
from phalanx.cluster.cluster_record import Cluster
from phalanx.errors import CloudError, ClusterError, PhalanxError

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_GROUP = "HeadSecurityGroup"
_SSH_PORT = 22


class NotAllowed(ClusterError):  # noqa: N818 - reads as what happened
    """No rule of the head's security group contains this machine's address."""

    code = "address-not-allowed"


def head_group(cloud: Aws, cluster: Cluster) -> str:
    """Return the id of the head's security group. Raises ClusterError if there is none."""
    if cluster.by_session:
        raise ClusterError(
            f"the head of {cluster.name} has no public address: nobody reaches it from a network",
            "People whom IAM allows ssm:StartSession reach it; `phalanx policy` prints that policy.",
            code="no-public-address",
        )
    found = [one.physical_id for one in stacks.resources(cloud, cluster.stack_id) if one.logical_id == _GROUP]
    state = None if found else stacks.describe(cloud, cluster.stack_id)
    if state is not None and state.outputs.get(_GROUP):
        return state.outputs[_GROUP]
    if not found:
        raise ClusterError(
            f"cluster {cluster.name} has no security group for its head",
            "`phalanx status` shows it.",
            code="no-security-group",
        )
    return found[0]


def require_allowed(cluster: Cluster) -> None:
    """Raise NotAllowed if no rule lets this machine reach the head; return if one does, or if nobody knows."""
    verdict = None
    with suppress(PhalanxError):
        verdict = refusal(cluster.name, own_address.seen(cluster.cloud), _rules(cluster))
    if verdict:
        raise verdict


def _rules(cluster: Cluster) -> list[dict[str, Any]]:
    aws = cluster.aws()
    return rules_of(aws, head_group(aws, cluster))


def allowed(cloud: Aws, group: str) -> list[str]:
    """Return the networks that may reach the head by ssh, in CIDR notation; none if nobody may look."""
    try:
        rules = rules_of(cloud, group)
    except CloudError:
        return []
    return list(_networks([rule for rule in rules if _is_for_ssh(rule)]))


def refusal(cluster: str, addresses: Sequence[str], rules: Sequence[dict[str, Any]]) -> NotAllowed | None:
    """Return the error if these rules of a security group let none of the addresses in; None if they may."""
    of_ssh = [rule for rule in rules if _is_for_ssh(rule)]
    if any(rule.get("PrefixListIds") for rule in of_ssh):
        return None
    networks = list(_networks(of_ssh))
    if any(ipaddress.ip_address(one) in ipaddress.ip_network(block) for one in addresses for block in networks):
        return None
    others = f"only {', '.join(networks)} may" if networks else "no address may"
    return NotAllowed(
        f"this machine's address {addresses[0]} may not reach the head of {cluster} by ssh: {others}",
        "`phalanx allow` adds it, with your rights in AWS.",
    )


def _is_for_ssh(rule: dict[str, Any]) -> bool:
    if rule["IpProtocol"] == "-1":
        return True
    return rule["IpProtocol"] == "tcp" and rule["FromPort"] <= _SSH_PORT <= rule["ToPort"]


def _networks(rules: Sequence[dict[str, Any]]) -> Iterator[str]:
    return (block["CidrIp"] for rule in rules for block in rule.get("IpRanges", ()))


def rules_of(aws: Aws, group: str) -> list[dict[str, Any]]:
    """Return all rules of the group, as EC2 describes them."""
    return aws.call("ec2", "describe_security_groups", GroupIds=[group])["SecurityGroups"][0]["IpPermissions"]


def allow_network(aws: Aws, group: str, network: str) -> bool:
    """Add a rule that lets the network reach port 22; return False if there was one."""
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": network}]}
    try:
        aws.call("ec2", "authorize_security_group_ingress", GroupId=group, IpPermissions=[rule])
    except CloudError as error:
        if code(error.__cause__) == "InvalidPermission.Duplicate":
            return False
        raise
    return True
