"""IAM's policy simulator: what the policies of a role would decide, with the conditions' keys as the caller gives them.

The account's own user may do everything. An organisation's policy counts as IAM does: as an explicit deny.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from moto.core.responses import ActionResult
from moto.iam.exceptions import NotFoundException
from moto.iam.responses import IamResponse

from localcloud import accounts
from localcloud.context import Context
from localcloud.iam import policy
from localcloud.iam.policy import Ask, Decision, Keys, Rights

_EVERYTHING = Rights([{"Effect": "Allow", "Action": "*", "Resource": "*"}])
_DECISIONS = {Decision.ALLOWED: "allowed", Decision.DENIED: "explicitDeny"}


def install(context: Context, rights_of: Callable[[Context, str], Rights]) -> None:
    """Add SimulatePrincipalPolicy, which moto does not have."""

    def simulate_principal_policy(self: IamResponse) -> ActionResult:
        rights = _rights(context, str(self._get_param("PolicySourceArn")), rights_of)
        keys: Keys = {
            one["ContextKeyName"].lower(): list(one.get("ContextKeyValues", ()))
            for one in self._get_param("ContextEntries") or ()
        }
        places = self._get_param("ResourceArns") or ["*"]
        asks = (Ask(action, where, keys) for action in self._get_param("ActionNames") for where in places)
        return ActionResult({"EvaluationResults": list(_results(context, rights, asks)), "IsTruncated": False})

    setattr(IamResponse, "simulate_principal_policy", simulate_principal_policy)  # noqa: B010 (moto has none)


def _rights(context: Context, arn: str, rights_of: Callable[[Context, str], Rights]) -> Rights:
    kind, _, name = arn.partition(f"::{context.account}:")[2].partition("/")
    if kind == "user":
        return _EVERYTHING
    found = rights_of(context, name.rpartition("/")[2]) if kind == "role" else policy.Rights()
    if not found.own:
        raise NotFoundException(f"The Policy Source Arn {arn} does not exist or is not attachable.")
    return found


def _results(context: Context, rights: Rights, asks: Iterable[Ask]) -> Iterable[dict[str, Any]]:
    for ask in asks:
        decision, organisation = _DECISIONS.get(rights.decide(ask), "implicitDeny"), {}
        if context.profile == accounts.COMPANY:
            is_allowed = ask.action not in accounts.DENIED.values()
            organisation = {"OrganizationsDecisionDetail": {"AllowedByOrganizations": is_allowed}}
            decision = decision if is_allowed else "explicitDeny"
        if ask.action == "ec2:RunInstances" and context.weather.forbids("explicit-deny"):
            decision = "explicitDeny"
        shown = {"EvalActionName": ask.action, "EvalResourceName": ask.resource, "EvalDecision": decision}
        yield {**shown, **organisation}
