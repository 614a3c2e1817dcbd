"""AWS STS: the identity of a session, and sessions of other roles, as their trust policies allow.

moto gives any caller a session of any role, even one that does not exist, and does not know callers' identities.
Source: AWS STS API reference, AssumeRole and GetCallerIdentity; docs/aws-behaviour.md 6, 'Assuming a role'.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from xml.sax.saxutils import escape

from moto.iam.models import Role, iam_backends

from localcloud.api import partitions
from localcloud.context import ADMIN, Context
from localcloud.iam import credentials, errors, policy
from localcloud.iam.calls import Call
from localcloud.iam.credentials import Session
from localcloud.iam.policy import Decision, Keys, Rights

WHO_AM_I = "sts:GetCallerIdentity"
ASSUME = "sts:AssumeRole"
_NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"
_SESSION_NAME = re.compile(r"[\w+=,.@-]{2,64}", re.ASCII)
_LEAST_S, _DEFAULT_S = 900, 3600
_MOST_CHAINED_S = 3600


def identity(context: Context, session: Session, start_response: Any) -> Iterable[bytes]:
    """Answer GetCallerIdentity, which needs no permission."""
    fields = {"Arn": session.arn(context.account), "UserId": session.user_id, "Account": context.account}
    return _answer("GetCallerIdentity", fields, start_response)


def administrator(context: Context, start_response: Any) -> Iterable[bytes]:
    """Answer GetCallerIdentity of the account's own user."""
    user = iam_backends[context.account][partitions.played()].get_user(ADMIN)
    fields = {"Arn": user.arn, "UserId": user.id, "Account": context.account}
    return _answer("GetCallerIdentity", fields, start_response)


@dataclass(frozen=True)
class Caller:
    """Whoever assumes a role: its ARN, all names by which a trust policy may mean it, and what its policies say."""

    arn: str
    names: tuple[str, ...]
    rights: Rights
    is_session: bool

    @classmethod
    def of(cls, context: Context, session: Session, rights: Rights) -> Caller:
        """Describe a session of a role, which has the role's rights."""
        arn = session.arn(context.account)
        role = f"{partitions.arn()}:iam::{context.account}:role/{session.role}"
        return cls(arn, (role, arn), rights, is_session=True)

    @classmethod
    def administrator(cls, context: Context) -> Caller:
        """Describe the account's own user, who may do everything; a trust policy means it by naming the account."""
        arn = f"{partitions.arn()}:iam::{context.account}:root"
        return cls(arn, (), Rights([{"Effect": "Allow", "Action": "*", "Resource": "*"}]), is_session=False)


def assume(context: Context, caller: Caller, call: Call, keys: Keys, start_response: Any) -> Iterable[bytes]:
    """Answer AssumeRole."""
    wanted = str(call.params.get("RoleArn", ""))
    role = _role(context, wanted)
    if problem := _problem(call, role, caller.is_session):
        return errors.invalid(problem, start_response)
    if role is None or not _may(context, caller, role, keys):
        message = f"User: {caller.arn} is not authorized to perform: {ASSUME} on resource: {wanted}"
        return errors.access_denied(call, message, start_response)
    name, lasts_s = _session_settings(call)
    made = credentials.issue(context, role, name, timedelta(seconds=int(lasts_s)), by="".join(caller.names[:1]))
    fields = credentials.document(made)
    fields["SessionToken"] = fields.pop("Token")
    user = {"AssumedRoleId": made.user_id, "Arn": made.arn(context.account)}
    return _answer("AssumeRole", {"Credentials": fields, "AssumedRoleUser": user}, start_response)


def _role(context: Context, arn: str) -> Role | None:
    roles = list(iam_backends[context.account][partitions.played()].roles.values())
    return next((role for role in roles if role.arn == arn), None)


def _may(context: Context, caller: Caller, role: Role, keys: Keys) -> bool:
    """Decide as AWS does: within an account, a trust policy that names a role or its session is enough.

    If it names the account, the caller's own policies decide.
    """
    trust = policy.statements_of(credentials.trust_policy(role))
    account = (context.account, f"{partitions.arn()}:iam::{context.account}:root")
    by_name = policy.decide(trust, policy.Ask(ASSUME, role.arn, keys, principals=caller.names))
    by_account = policy.decide(trust, policy.Ask(ASSUME, role.arn, keys, principals=account))
    asked = policy.Ask(ASSUME, role.arn, keys)
    by_itself = caller.rights.decide(asked)
    if Decision.DENIED in (by_name, by_account, by_itself) or not caller.rights.within_boundary(asked):
        return False
    return by_name is Decision.ALLOWED or by_account is by_itself is Decision.ALLOWED


def _session_settings(call: Call) -> tuple[str, str]:
    return str(call.params.get("RoleSessionName", "")), str(call.params.get("DurationSeconds", _DEFAULT_S))


def _problem(call: Call, role: Role | None, is_session: bool) -> str:
    """Return AWS's message about an invalid session name or duration, "" if both are valid."""
    name, lasts_s = _session_settings(call)
    if not _SESSION_NAME.fullmatch(name):
        return _invalid(name, "roleSessionName", "satisfy regular expression pattern: [\\w+=,.@-]*")
    if not lasts_s.isdecimal() or int(lasts_s) < _LEAST_S:
        return _invalid(lasts_s, "durationSeconds", f"have value greater than or equal to {_LEAST_S}")
    if is_session and int(lasts_s) > _MOST_CHAINED_S:
        return "The requested DurationSeconds exceeds the 1 hour session limit for roles assumed by role chaining"
    if role is not None and int(lasts_s) > int(role.max_session_duration or _DEFAULT_S):
        return "The requested DurationSeconds exceeds the MaxSessionDuration set for this role."
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
