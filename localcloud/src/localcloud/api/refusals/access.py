"""IAM's roles: trust policies that name nobody, or that are no policies at all, and policies that do not exist."""

from __future__ import annotations

import functools
import json
from typing import Any

from moto.iam.aws_managed_policies import aws_managed_policies_data
from moto.iam.exceptions import LimitExceededException, MalformedPolicyDocument
from moto.iam.models import AWSManagedPolicy, IAMBackend
from moto.iam.policy_validation import IAMPolicyDocumentValidator

from localcloud.api import partitions
from localcloud.api.refusals.before import Given, before


@before(IAMBackend, "attach_role_policy", "attach_user_policy", "attach_group_policy", "get_policy")
def _a_policy_is_neither_ours_nor_aws(backend: Any, given: Given) -> None:
    """Let moto find AWS's own policies; it refuses those that nobody has."""
    load(backend, str(given.policy_arn))


@before(IAMPolicyDocumentValidator, "_validate_version")
def _a_version_is_missing(validator: Any, _given: Given) -> None:
    """Let moto accept a policy without a version: it has the oldest one (IAM's reference of the element Version)."""
    validator._policy_json.setdefault("Version", "2012-10-17")


_EFFECTS = ("Allow", "Deny")


@before(IAMBackend, "create_role", "update_assume_role_policy")
def _a_trust_policy_is_malformed(_backend: Any, given: Given) -> None:
    """Refuse what moto checks only in UpdateAssumeRolePolicy, and then not completely."""
    statements = _statements(given.assume_role_policy_document or given.policy_document)
    for statement in statements:
        if "Resource" in statement or "NotResource" in statement:
            raise MalformedPolicyDocument("Has prohibited field Resource")
        if not statement.get("Principal") and not statement.get("NotPrincipal"):
            raise MalformedPolicyDocument("Missing required field Principal")
        if statement.get("Effect") not in _EFFECTS:
            raise MalformedPolicyDocument("Missing required field Effect")
        if not statement.get("Action") and not statement.get("NotAction"):
            raise MalformedPolicyDocument("Missing required field Action")
        _refuse_principals(statement)


def _refuse_principals(statement: dict[str, Any]) -> None:
    """Refuse services that the partition does not know (docs/aws-behaviour.md 6.1)."""
    principal = statement.get("Principal", {})
    services = principal.get("Service", []) if isinstance(principal, dict) else []
    for service in [services] if isinstance(services, str) else services:
        if service.partition(".")[2] not in ("amazonaws.com", partitions.of_principals()):
            raise MalformedPolicyDocument(f'Invalid principal in policy: "SERVICE":"{service}"')


@before(IAMBackend, "put_role_policy", "create_policy")
def _a_resource_is_of_another_partition(_backend: Any, given: Given) -> None:
    """Refuse ARNs of a partition that is not the account's (docs/aws-behaviour.md 6.8)."""
    for statement in _statements(given.policy_json or given.policy_document):
        named = statement.get("Resource", [])
        for arn in [named] if isinstance(named, str) else named:
            partition = str(arn).split(":")[1:2]
            if str(arn).startswith("arn:") and partition[0] not in ("*", partitions.played()):
                raise MalformedPolicyDocument(f'Partition "{partition[0]}" is not valid for resource "{arn}".')


_INLINE_CHARACTERS = 10_240


@before(IAMBackend, "put_role_policy")
def _inline_policies_are_too_large(backend: Any, given: Given) -> None:
    """Refuse what a role's inline policies have together beyond IAM's limit, without white space (12.1)."""
    role = backend.get_role(given.role_name)
    policies = {**role.policies, given.policy_name: given.policy_json}
    if sum(len("".join(text.split())) for text in policies.values()) > _INLINE_CHARACTERS:
        raise LimitExceededException(
            f"Maximum policy size of {_INLINE_CHARACTERS} bytes exceeded for role {given.role_name}"
        )


def _statements(document: Any) -> list[dict[str, Any]]:
    """Return the statements of a policy. Raises MalformedPolicyDocument when there are none."""
    try:
        policy = json.loads(document) if isinstance(document, str) else document
        found = policy["Statement"]
    except (ValueError, KeyError, TypeError):
        raise MalformedPolicyDocument("This policy contains invalid Json") from None
    statements = found if isinstance(found, list) else [found]
    if not statements or not all(isinstance(one, dict) for one in statements):
        raise MalformedPolicyDocument("Syntax errors in policy.")
    return statements


def load(backend: Any, arn: str) -> None:
    """Add the policy with this ARN to moto's, if it is one of AWS's."""
    if not arn.startswith(f"{partitions.arn()}:iam::aws:policy/") or arn in backend.managed_policies:
        return
    name = arn.rpartition("/")[2]
    if name in _documents():
        policy = AWSManagedPolicy.from_data(name, backend.account_id, backend.region_name, _documents()[name])
        backend.managed_policies[policy.arn] = policy


@functools.cache
def _documents() -> dict[str, Any]:
    return json.loads(aws_managed_policies_data)
