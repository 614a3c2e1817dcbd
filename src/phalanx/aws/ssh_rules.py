"""The rules of a security group that let networks reach the head by ssh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phalanx.aws.refusals import code
from phalanx.errors import CloudError

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws


def of(aws: Aws, group: str) -> list[dict[str, Any]]:
    """Return all rules of the group, as EC2 describes them."""
    return aws.call("ec2", "describe_security_groups", GroupIds=[group])["SecurityGroups"][0]["IpPermissions"]


def allow(aws: Aws, group: str, network: str) -> bool:
    """Add a rule that lets the network reach port 22; return False if there was one."""
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": network}]}
    try:
        aws.call("ec2", "authorize_security_group_ingress", GroupId=group, IpPermissions=[rule])
    except CloudError as error:
        if code(error.__cause__) == "InvalidPermission.Duplicate":
            return False
        raise
    return True
