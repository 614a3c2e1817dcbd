"""Service roles of stacks: an operation that names one acts with its rights, and so does every later one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from localcloud.api import partitions
from localcloud.cloudformation.errors import Refused
from localcloud.cloudformation.model import Stack
from localcloud.context import Context
from localcloud.iam import credentials, middleware, policy
from localcloud.iam.credentials import May

SERVICE = "cloudformation.amazonaws.com"
_SESSION = "AWSCloudFormation"


def chosen(context: Context, before: str, given: str) -> str:
    """Return the ARN of the role for an operation: the one that it names, or else the stack's; "" for none.

    Raises Refused for a caller who may not pass it, and for a role that CloudFormation can't assume
    (docs/aws-behaviour.md 1.33).
    """
    may = credentials.may()
    if given and may is not None:
        refusal = may("iam:PassRole", given, {"iam:passedtoservice": [SERVICE]})
        if refusal:
            raise Refused(refusal, "AccessDenied")
    role = given or before
    if role and not _is_assumable(context, role):
        raise Refused(_unusable(role))
    return role


def rights(context: Context, stack: Stack) -> May | None:
    """Return the rights with which an operation of the stack acts: its role's, or those of the call's sender."""
    return _rights_of(context, stack.role)


def parameter(context: Context, role: str, region: str, name: str) -> None:
    """Raise Refused unless an operation with this role, or its sender, may read a parameter of Systems Manager's."""
    may, owner = _rights_of(context, role), "" if name.startswith("/aws/") else context.account
    arn = f"{partitions.arn()}:ssm:{region}:{owner}:parameter/{name.lstrip('/')}"
    if may is not None and may("ssm:GetParameters", arn, {}):
        # In CloudFormation's own words (docs/aws-behaviour.md 1.47).
        raise Refused("AccessDenied. User doesn't have permission to call ssm:GetParameters")


def _rights_of(context: Context, role: str) -> May | None:
    return partial(_refusal, context, role) if role else credentials.may()


def _refusal(context: Context, role_arn: str, action: str, arn: str, keys: Mapping[str, Sequence[str]]) -> str:
    """Judge a call with the role's rights, as they are at this moment."""
    if not _is_assumable(context, role_arn):
        return _unusable(role_arn)
    name = role_arn.rpartition("/")[2]
    session = f"{partitions.arn()}:sts::{context.account}:assumed-role/{name}/{_SESSION}"
    return middleware.denial(context, name, session, policy.Ask(action, arn, keys))


def _is_assumable(context: Context, role_arn: str) -> bool:
    role = credentials.role_of(context.account, role_arn)
    return role is not None and role.arn == role_arn and credentials.trusts(role, SERVICE)


def _unusable(role_arn: str) -> str:
    return f"Role {role_arn} is invalid or cannot be assumed"
