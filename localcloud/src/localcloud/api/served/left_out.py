"""Members that AWS's answers always have and moto's lack: their pages name them (docs/aws-behaviour.md 2.81)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from localcloud.accounts import ACCOUNT
from localcloud.api import partitions
from localcloud.api.served import lists, operations
from localcloud.iam.calls import Call

Item = dict[str, Any]
Members = Mapping[str, Callable[[Call, Item], Any]]


def _rule_arn(call: Call, rule: Item) -> str:
    place = f"{partitions.arn()}:ec2:{call.region}:{ACCOUNT}"
    return f"{place}:security-group-rule/{rule['SecurityGroupRuleId']}"


_RULE: Members = {"GroupOwnerId": lambda _call, _item: ACCOUNT, "SecurityGroupRuleArn": _rule_arn}
_SUBNET: Members = {"EnableDns64": lambda _call, _item: False}
_POLICY: Members = {"PermissionsBoundaryUsageCount": lambda _call, _item: 0}
_GROUP: Members = {"logGroupClass": lambda _call, _item: "STANDARD"}
_TABLE: Members = {"TableId": lambda _call, item: str(uuid.uuid5(uuid.NAMESPACE_URL, item["TableArn"]))}
_FILE_SYSTEM: Members = {"FileSystemProtection": lambda _call, _item: {"ReplicationOverwriteProtection": "ENABLED"}}
# Action → the member that contains the items, and what each must have.
_OF: dict[str, tuple[str, Members]] = {
    "ec2:CreateSubnet": ("Subnet", _SUBNET),
    "ec2:DescribeSubnets": ("Subnets", _SUBNET),
    "ec2:AuthorizeSecurityGroupIngress": ("SecurityGroupRules", _RULE),
    "ec2:AuthorizeSecurityGroupEgress": ("SecurityGroupRules", _RULE),
    "ec2:DescribeSecurityGroupRules": ("SecurityGroupRules", _RULE),
    "iam:CreatePolicy": ("Policy", _POLICY),
    "iam:GetPolicy": ("Policy", _POLICY),
    "iam:ListPolicies": ("Policies", _POLICY),
    "logs:DescribeLogGroups": ("logGroups", _GROUP),
    "dynamodb:CreateTable": ("TableDescription", _TABLE),
    "dynamodb:DescribeTable": ("Table", _TABLE),
    "dynamodb:DeleteTable": ("TableDescription", _TABLE),
    "elasticfilesystem:CreateFileSystem": ("", _FILE_SYSTEM),
    "elasticfilesystem:DescribeFileSystems": ("FileSystems", _FILE_SYSTEM),
    "iam:ListInstanceProfiles": ("", {"IsTruncated": lambda _call, _item: False}),
}


def put(call: Call, answer: lists.Answer) -> lists.Answer:
    """Return an answer with the members that moto leaves out."""
    model = operations.named(call.service, call.operation)
    if call.action not in _OF or model is None:
        return answer
    result = lists.parsed(call, model, answer)
    name, members = _OF[call.action]
    for item in _items(result, name):
        for member, value in members.items():
            item.setdefault(member, value(call, item))
    return lists.written(call, model, answer, result)


def _items(result: Item, name: str) -> Iterator[Item]:
    found = result.get(name) if name else result
    yield from found if isinstance(found, list) else [found] if found else []
