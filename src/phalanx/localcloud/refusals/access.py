"""IAM's roles: trust policies that name nobody, or that are no policies at all."""

from __future__ import annotations

import json
from typing import Any

from moto.iam.exceptions import MalformedPolicyDocument
from moto.iam.models import IAMBackend

from phalanx.localcloud.refusals.before import Given, before

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
