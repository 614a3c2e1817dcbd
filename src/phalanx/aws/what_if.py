"""Ask EC2 and IAM what they would allow: a dry run of RunInstances, and IAM's policy simulator. Nothing is made.

Both know the caller's policies and those of the organisation; neither knows capacity (docs/aws-behaviour.md 2.73, 6.6).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phalanx.aws.refusals import code, message
from phalanx.errors import CloudError
from phalanx.template.permissions import OPTIONAL
from phalanx.template.policy import TYPES
from phalanx.waits import waiting

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_WOULD_WORK = "DryRunOperation"
# EC2 wants a subnet that is there, and the cluster's own does not exist yet.
_NO_PLACE = ("VPCIdNotSpecified", "MissingInput")
_NO_SUBNET = re.compile(r"[Nn]o (default )?subnets?\b|default VPC")
_MOST_ACTIONS = 50
_ASSUMED = re.compile(r"arn:([\w-]+):sts::(\d+):assumed-role/([^/]+)/.*")
_PERSON = re.compile(r"arn:[\w-]+:(?:iam|sts)::(\d+):user/.+")
_EXAMPLE = "example"
# The operator of a condition that asks whether a key is there.
_NULL = "Null"
# RunInstances takes several resources at once, and has the dry run. Roles of services are mostly there already, and
# without the others phalanx does what it can.
_NOT_ASKED = frozenset({"ec2:RunInstances", "iam:CreateServiceLinkedRole", *OPTIONAL})
# Types of resources that have another name than the actions on them.
_KINDS = {
    "address": "elastic-ip",
    "job-flows": "cluster",
    "mount-target": "file-system",
    "nat-gateway": "natgateway",
    "route": "route-table",
    **dict.fromkeys(("security-group-egress", "security-group-ingress"), "security-group"),
    "vpc-endpoints": "vpc-endpoint",
    "ec2:DeleteTags": "vpc",
    "elasticfilesystem:DeleteTags": "file-system",
}


class NotCheckedError(Exception):
    """Why one of these questions can't be asked here."""


@dataclass(frozen=True)
class Question:
    """Whether these actions are allowed on a resource, with these condition keys."""

    actions: tuple[str, ...]
    resource: str
    keys: tuple[tuple[str, str], ...] = ()


def launch(aws: Aws, **arguments: Any) -> str:
    """Return why RunInstances would refuse this launch; "" if it would not. Raises NotCheckedError."""
    try:
        aws.call("ec2", "run_instances", MinCount=1, MaxCount=1, DryRun=True, **arguments)
    except CloudError as error:
        kind = code(error.__cause__)
        if kind == _WOULD_WORK:
            return ""
        if kind in _NO_PLACE or _NO_SUBNET.search(message(error.__cause__)):
            raise NotCheckedError("the region has no default VPC, and the cluster's own does not exist yet") from error
        if not error.was_refused or error.code == "throttled":
            raise NotCheckedError(error.message) from error
        return f"{kind}: {message(error.__cause__)}"
    raise NotCheckedError("EC2 did not answer as it does to a dry run")


def denied(aws: Aws, policy: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Ask whether the caller has the rights of a policy; return how many were asked about, and those that are denied.

    Raises NotCheckedError for a caller whom the simulator does not know, or who may not use it.
    """
    source, account, partition = _caller(aws)
    asked: set[str] = set()
    refused: dict[str, str] = {}
    with waiting("IAM's policy simulator"):
        for question in questions(policy["Statement"], aws.region, account, partition):
            asked.update(question.actions)
            for result in _simulated(aws, source, question):
                if not _is_allowed(result):
                    where = result.get("EvalResourceName", question.resource)
                    by = "" if _organisation_allows(result) else ", by the organisation's policy"
                    refused.setdefault(result["EvalActionName"], f"{where}{by}")
    return len(asked), [f"{action} on {resource}" for action, resource in sorted(refused.items())]


def _caller(aws: Aws) -> tuple[str, str, str]:
    """Return the ARN of the caller's user or role, its account and its partition."""
    found = aws.call("sts", "get_caller_identity")
    arn, account = found["Arn"], found["Account"]
    if assumed := _ASSUMED.fullmatch(arn):
        return _role(aws, assumed), account, assumed[1]
    if _PERSON.fullmatch(arn):
        return arn.replace(":sts:", ":iam:"), account, arn.split(":")[1]
    raise NotCheckedError(f"IAM's simulator does not know {arn}")


def _role(aws: Aws, assumed: re.Match[str]) -> str:
    """Return the ARN of a session's role, whose path the session's ARN does not show."""
    partition, account, name = assumed.groups()
    try:
        found = aws.exists("iam", "get_role", RoleName=name)
    except CloudError:
        found = None
    return found["Role"]["Arn"] if found else f"arn:{partition}:iam::{account}:role/{name}"


def _simulated(aws: Aws, source: str, question: Question) -> Iterator[Mapping[str, Any]]:
    context = [
        {"ContextKeyName": name, "ContextKeyValues": [value], "ContextKeyType": "string"}
        for name, value in question.keys
    ]
    try:
        yield from aws.pages(
            "iam",
            "simulate_principal_policy",
            "EvaluationResults",
            PolicySourceArn=source,
            ActionNames=list(question.actions),
            ResourceArns=[question.resource],
            ContextEntries=context,
        )
    except CloudError as error:
        raise NotCheckedError(error.message) from error


def _is_allowed(result: Mapping[str, Any]) -> bool:
    return result["EvalDecision"] == "allowed" and _organisation_allows(result)


def _organisation_allows(result: Mapping[str, Any]) -> bool:
    return result.get("OrganizationsDecisionDetail", {}).get("AllowedByOrganizations", True)


def questions(
    statements: Sequence[Mapping[str, Any]], region: str, account: str, partition: str = "aws"
) -> Iterator[Question]:
    """Yield what to ask about a policy that `phalanx policy` prints: each action on an example of each resource."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], set[str]] = defaultdict(set)
    for statement in statements:
        keys = tuple(sorted(_keys(statement.get("Condition", {}), partition)))
        for action in statement["Action"]:
            for pattern in statement["Resource"]:
                if action not in _NOT_ASKED and "${" not in pattern and _takes(action, pattern):
                    found[_concrete(pattern, action, region, account, partition), keys].add(action)
    for (resource, keys), actions in sorted(found.items()):
        ordered = sorted(actions)
        for begin in range(0, len(ordered), _MOST_ACTIONS):
            yield Question(tuple(ordered[begin : begin + _MOST_ACTIONS]), resource, keys)


def _takes(action: str, pattern: str) -> bool:
    """Whether an action is about resources such as this one: a statement has all actions beside all resources."""
    service, _, name = action.partition(":")
    if pattern == "*":
        return True
    if pattern.split(":")[2] != {"ssmmessages": "ssm"}.get(service, service):
        return False
    kind = pattern.split(":", 5)[5].removesuffix("/*")
    if TYPES.get(action) and kind != "*":
        return kind in TYPES[action].split() or "/" in kind
    if service == "iam" and (":role/" in pattern or ":instance-profile/" in pattern):
        return ("InstanceProfile" in name) == (":instance-profile/" in pattern)
    return True


def _concrete(pattern: str, action: str, region: str, account: str, partition: str) -> str:
    """Return the ARN of a resource that the pattern matches."""
    if pattern == "*":
        return pattern
    _, _, service, of_region, of_account, name = pattern.split(":", 5)
    name = f"{_kind(action)}/*" if name == "*" else name
    place = [region if of_region == "*" else of_region, account if of_account == "*" else of_account]
    return ":".join(["arn", partition, service, *place, name.replace("*", _EXAMPLE)])


def _kind(action: str) -> str:
    """Return the type of resource that an action such as DeleteSecurityGroup names: security-group."""
    words = re.findall(r"[A-Z][a-z]+", action.partition(":")[2])[1:]
    kind = "-".join(words).lower()
    return _KINDS.get(action) or _KINDS.get(kind, kind) or _EXAMPLE


def _keys(condition: Mapping[str, Mapping[str, Any]], partition: str) -> Iterator[tuple[str, str]]:
    for operator, wanted in condition.items():
        for key, values in wanted.items():
            for value in [values] if isinstance(values, str) else values[:1]:
                plain = value.replace("arn:*:", f"arn:{partition}:").replace("*", _EXAMPLE)
                yield key, "true" if operator == _NULL else plain
