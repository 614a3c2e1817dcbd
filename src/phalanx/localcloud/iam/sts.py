"""AWS STS: the identity of a session, and sessions of other roles, as their trust policies allow.

moto gives any caller a session of any role, even one that does not exist, and does not know callers' identities.
Source: AWS STS API reference, AssumeRole and GetCallerIdentity; docs/aws-behaviour.md 6, 'Assuming a role'.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from xml.sax.saxutils import escape

from moto.iam.models import Role, iam_backends

from phalanx.localcloud.context import Context
from phalanx.localcloud.iam import credentials, errors, policy
from phalanx.localcloud.iam.calls import Call
from phalanx.localcloud.iam.credentials import Session
from phalanx.localcloud.iam.policy import Decision, Keys, Rights

WHO_AM_I = "sts:GetCallerIdentity"
ASSUME = "sts:AssumeRole"
_NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"
_SESSION_NAME = re.compile(r"[\w+=,.@-]{2,64}", re.ASCII)
_LEAST_S = 900
_MOST_CHAINED_S = 3600


def identity(context: Context, session: Session, start_response: Any) -> Iterable[bytes]:
    """Answer GetCallerIdentity, which needs no permission."""
    fields = {"Arn": session.arn(context.account), "UserId": session.user_id, "Account": context.account}
    return _answer("GetCallerIdentity", fields, start_response)


def assume(
    context: Context, session: Session, rights: Rights, call: Call, keys: Keys, start_response: Any
) -> Iterable[bytes]:
    """Answer AssumeRole by a session whose role has these rights."""
    wanted = str(call.params.get("RoleArn", ""))
    role = _role(context, wanted)
    if role is None or not _may(context, session, rights, role, keys):
        message = f"User: {session.arn(context.account)} is not authorized to perform: {ASSUME} on resource: {wanted}"
        return errors.access_denied(call, message, start_response)
    name, lasts_s = str(call.params.get("RoleSessionName", "")), str(call.params.get("DurationSeconds", "3600"))
    if problem := _problem(name, lasts_s):
        return errors.invalid(problem, start_response)
    made = credentials.issue(context, role, name, timedelta(seconds=int(lasts_s)))
    fields = credentials.document(made)
    fields["SessionToken"] = fields.pop("Token")
    user = {"AssumedRoleId": made.user_id, "Arn": made.arn(context.account)}
    return _answer("AssumeRole", {"Credentials": fields, "AssumedRoleUser": user}, start_response)


def _role(context: Context, arn: str) -> Role | None:
    return next((role for role in list(iam_backends[context.account]["aws"].roles.values()) if role.arn == arn), None)


def _may(context: Context, session: Session, rights: Rights, role: Role, keys: Keys) -> bool:
    """Decide as AWS does: within an account, a trust policy that names a role or its session is enough.

    If it names the account, the role's own policies decide. The role's permissions boundary must allow it in any case.
    """
    trust = policy.statements_of(credentials.trust_policy(role))
    names = (f"arn:aws:iam::{context.account}:role/{session.role}", session.arn(context.account))
    account = (context.account, f"arn:aws:iam::{context.account}:root")
    by_name = policy.decide(trust, policy.Ask(ASSUME, role.arn, keys, principals=names))
    by_account = policy.decide(trust, policy.Ask(ASSUME, role.arn, keys, principals=account))
    asked = policy.Ask(ASSUME, role.arn, keys)
    by_itself = rights.decide(asked)
    if Decision.DENIED in (by_name, by_account, by_itself) or not rights.within_boundary(asked):
        return False
    return by_name is Decision.ALLOWED or by_account is by_itself is Decision.ALLOWED


def _problem(name: str, lasts_s: str) -> str:
    """Return AWS's message about an invalid session name or duration, "" if both are valid."""
    if not _SESSION_NAME.fullmatch(name):
        return _invalid(name, "roleSessionName", "satisfy regular expression pattern: [\\w+=,.@-]*")
    if not lasts_s.isdecimal() or int(lasts_s) < _LEAST_S:
        return _invalid(lasts_s, "durationSeconds", f"have value greater than or equal to {_LEAST_S}")
    if int(lasts_s) > _MOST_CHAINED_S:
        return "The requested DurationSeconds exceeds the 1 hour session limit for roles assumed by role chaining"
    return ""


def _invalid(value: str, name: str, constraint: str) -> str:
    found = f"1 validation error detected: Value '{value}' at '{name}'"
    return f"{found} failed to satisfy constraint: Member must {constraint}"


def _answer(action: str, content: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    result = f"<{action}Result>{_xml(content)}</{action}Result>"
    body = f'<{action}Response xmlns="{_NAMESPACE}">{result}</{action}Response>'.encode()
    start_response("200 OK", [("Content-Type", "text/xml"), ("Content-Length", str(len(body)))])
    return [body]


def _xml(content: dict[str, Any] | str) -> str:
    if isinstance(content, str):
        return escape(content)
    return "".join(f"<{name}>{_xml(value)}</{name}>" for name, value in content.items())
