"""Temporary credentials of IAM roles: for instances, through the metadata service, and for Lambda functions."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from moto.ec2.models.instances import Instance
from moto.iam.models import Role, iam_backends

from localcloud.api import admission, partitions
from localcloud.api.admission import Peer
from localcloud.context import Context, Issued

LIFETIME = timedelta(hours=6)
# The metadata service returns new ones at least five minutes before the old ones expire.
RENEW_BEFORE = timedelta(minutes=5)


@dataclass(frozen=True)
class Session:
    """A session of a role. `name` is the id of the instance or the name of the function."""

    issued: Issued
    role: str
    name: str
    expires: datetime
    role_id: str = ""
    instance_keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Condition keys of credentials that an instance was given (docs/aws-behaviour.md 6)."""

    @property
    def user_id(self) -> str:
        """Return the session's `aws:userid`: the role's unique id and the session's name (docs/aws-behaviour.md 6)."""
        return f"{self.role_id}:{self.name}"

    def arn(self, account: str) -> str:
        """Return the session's ARN, as in AWS's error messages and in aws:PrincipalArn."""
        return f"{partitions.arn()}:sts::{account}:assumed-role/{self.role}/{self.name}"


class AssumeRoleError(Exception):
    """The role's trust policy does not let this service use the role."""


AWS_USER_ID = "AIDAIT2UOQQY3AUEKVGXU"
"""The sender's user id of messages from AWS's own services, such as SNS (docs/aws-behaviour.md 3.24)."""
May = Callable[[str, str, Mapping[str, Sequence[str]]], str]
"""Returns why the caller may not do an action on an ARN, with these further condition keys; "" if it may."""

_caller: ContextVar[str] = ContextVar("caller", default=AWS_USER_ID)
_may: ContextVar[May | None] = ContextVar("may", default=None)
_lock = threading.Lock()
_by_key: dict[str, Session] = {}
_by_holder: dict[tuple[str, str], Session] = {}
# By AssumeRole, for each node and the role that did so, as long as they are among its last ones: its agent does so once
# for each job.
_assumed: dict[Peer, dict[str, deque[str]]] = {}
_MOST_ASSUMED = 1000


def forget_all() -> None:
    """Remove all sessions: a new local cloud starts without any."""
    with _lock:
        _by_key.clear()
        _by_holder.clear()
        _assumed.clear()


def session_of(access_key_id: str) -> Session | None:
    """Return the session of an access key, None for a key that belongs to no role."""
    return _by_key.get(access_key_id)


def caller() -> str:
    """Return the user id of the current call's sender; outside of a call, that of AWS's own services."""
    return _caller.get()


def may() -> May | None:
    """Return the rights of the current call's sender; None for one that may do everything."""
    return _may.get()


@contextmanager
def calling(user_id: str, may: May | None = None) -> Iterator[None]:
    """Make calls in the block on behalf of this user id, with these rights."""
    before, rights = _caller.set(user_id), _may.set(may)
    try:
        yield
    finally:
        _caller.reset(before)
        _may.reset(rights)


def instance_role(instance: Instance) -> Role | None:
    """Return the role in the instance's profile, or None."""
    association = instance.ec2_backend.iam_instance_profile_associations.get(instance.id)
    roles = association.iam_instance_profile.roles if association else []
    return roles[0] if roles else None


def for_instance(context: Context, instance: Instance) -> dict[str, str]:
    """Return the document of /latest/meta-data/iam/security-credentials/ROLE. Raises AssumeRoleError."""
    role = instance_role(instance)
    if role is None:
        raise AssumeRoleError(f"{instance.id} has no instance profile")
    session = _session(context, role, instance.id, partitions.ec2(), _instance_keys(context, instance))
    return {"Code": "Success", "LastUpdated": _iso(context.clock.now()), "Type": "AWS-HMAC", **document(session)}


def _instance_keys(context: Context, instance: Instance) -> dict[str, list[str]]:
    region = instance.ec2_backend.region_name
    return {
        "ec2:sourceinstancearn": [f"{partitions.arn()}:ec2:{region}:{context.account}:instance/{instance.id}"],
        "aws:ec2instancesourcevpc": [instance.vpc_id or ""],
        "aws:ec2instancesourceprivateipv4": [instance.private_ip or ""],
    }


def document(session: Session) -> dict[str, str]:
    """Return the credentials under the names that AWS's documents use."""
    return {
        "AccessKeyId": session.issued.access_key_id,
        "SecretAccessKey": session.issued.secret_access_key,
        "Token": session.issued.session_token,
        "Expiration": _iso(session.expires),
    }


def issue(context: Context, role: Role, name: str, lasts: timedelta, by: str = "") -> Session:
    """Create a new session of the role; another role, `by`, that asks without end from a node loses its first ones."""
    now = context.clock.now()
    with _lock:
        session = Session(context.issue(role.name), role.name, name, now + lasts, role_id=role.id)
        _by_key[session.issued.access_key_id] = session
        if (peer := admission.served()) != admission.USER:
            mine = _assumed.setdefault(peer, {})
            mine.setdefault(by, deque()).append(session.issued.access_key_id)
            if sum(map(len, mine.values())) > _MOST_ASSUMED:
                _drop(context, max(mine.values(), key=len).popleft())
        _drop_expired(context, now)
    return session


def role_of(account: str, role_arn: str) -> Role | None:
    """Return the role with the name in this ARN, or None."""
    name = role_arn.rsplit("/", 1)[-1]
    roles = list(iam_backends[account][partitions.played()].roles.values())
    return next((role for role in roles if role.name == name), None)


def for_function(context: Context, role_arn: str, function_name: str) -> Session:
    """Return a session of a Lambda function's role. Raises AssumeRoleError."""
    role = role_of(context.account, role_arn)
    if role is None:
        raise AssumeRoleError(f"The role {role_arn} does not exist")
    return _session(context, role, function_name, "lambda.amazonaws.com", {})


def _session(
    context: Context, role: Role, holder: str, service: str, instance_keys: Mapping[str, Sequence[str]]
) -> Session:
    if not trusts(role, service):
        raise AssumeRoleError(
            f"The role {role.name} cannot be assumed by {service}: its trust policy does not allow it"
        )
    now = context.clock.now()
    with _lock:
        session = _by_holder.get((role.name, holder))
        if session is None or session.expires - now < RENEW_BEFORE:
            issued = context.issue(role.name)
            session = Session(issued, role.name, holder, now + LIFETIME, role.id, instance_keys)
            _by_holder[role.name, holder] = session
            _by_key[issued.access_key_id] = session
            _drop_expired(context, now)
        return session


def _drop_expired(context: Context, now: datetime) -> None:
    for key, session in list(_by_key.items()):
        if session.expires <= now - LIFETIME:
            _drop(context, key)
            if _by_holder.get((session.role, session.name)) is session:
                del _by_holder[session.role, session.name]


def _drop(context: Context, key: str) -> None:
    _by_key.pop(key, None)
    context.issued.pop(key, None)


def trusts(role: Role, service: str) -> bool:
    """Return whether the role's trust policy lets the service assume it."""
    statements = trust_policy(role).get("Statement", [])
    for statement in statements if isinstance(statements, list) else [statements]:
        principal = statement.get("Principal", {})
        services = principal.get("Service", []) if isinstance(principal, dict) else principal
        if statement.get("Effect") == "Allow" and service in ([services] if isinstance(services, str) else services):
            return True
    return False


def trust_policy(role: Role) -> dict[str, Any]:
    """Return the role's trust policy."""
    text: Any = role.assume_role_policy_document
    return json.loads(text) if isinstance(text, str) else dict(text or {})


def _iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
