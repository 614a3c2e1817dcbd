"""Authorize every request: check its signature, and whether the role's policies allow it."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends

from localcloud.api import admission, partitions
from localcloud.context import ADMIN, Context
from localcloud.ec2 import account_regions
from localcloud.iam import (
    calls,
    credentials,
    errors,
    instance_identity,
    policy,
    propagation,
    resources,
    simulator,
    sts,
    usage,
)
from localcloud.iam import keys as kms
from localcloud.iam.calls import Call
from localcloud.iam.credentials import Session
from localcloud.iam.keys import Caller

PATCHED = propagation.PATCHED

App = Callable[[dict[str, Any], Any], Iterable[bytes]]
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=\w+/(?P<scope>(?P<day>\d{8})/(?P<region>[\w-]+)/(?P<service>[\w.-]+)/aws4_request),"
    r"\s*SignedHeaders=(?P<headers>[^,\s]+),\s*Signature=(?P<signature>[0-9a-f]{64})"
)


def install(context: Context) -> None:
    """Remove the sessions of an earlier local cloud in this process."""
    credentials.forget_all()
    usage.install(context)
    propagation.install(context)
    simulator.install(context, rights_of)


def wrap(context: Context, app: App) -> App:
    """Return `app` with the checks before it. The administrator may do everything, an unknown key nothing."""

    def guarded(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if instance_identity.is_used(environ):
            return _of_instance(context, app, environ, start_response)
        call = environ[calls.PARSED] = calls.read(environ)
        if call is None:
            return errors.missing_token(start_response)
        environ[calls.CALL] = call
        issued = context.issued.get(call.access_key_id)
        if issued is None or environ.get("HTTP_X_AMZ_SECURITY_TOKEN", "") != issued.session_token:
            return errors.invalid_token(call, start_response)
        if account_regions.is_off(context, call.region):
            return errors.invalid_token(call, start_response)
        if not _is_signed_with(environ, call.body, issued.secret_access_key):
            return errors.wrong_signature(call, start_response)
        if issued.principal == ADMIN:
            if call.action == sts.ASSUME:
                return sts.assume(context, sts.Caller.administrator(context), call, {}, start_response)
            if call.action == sts.WHO_AM_I:
                return sts.administrator(context, start_response)
            with credentials.calling(context.account):
                return app(environ, start_response)
        session = credentials.session_of(call.access_key_id)
        if session is None or session.expires <= context.clock.now():
            return errors.expired_token(call, start_response)
        if call.action == sts.WHO_AM_I:
            return sts.identity(context, session, start_response)
        if call.action == sts.ASSUME:
            caller = sts.Caller.of(context, session, rights_of(context, session.role))
            with admission.serving(environ.get(admission.PEER, admission.USER)):
                return sts.assume(context, caller, call, _keys(context, session, call), start_response)
        if _needs_a_rule(context, session, call):
            return errors.not_served(call, _NO_RULE.format(call.action), start_response)
        refusal = judge(context, session, call) or _judge_endpoint(
            context, session, call, environ.get(calls.ENDPOINT_POLICY)
        )
        if refusal:
            return errors.access_denied(call, refusal, start_response)
        with credentials.calling(session.user_id, partial(_refusal, context, session, call)):
            return app(environ, start_response)

    return guarded


def _of_instance(context: Context, app: App, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Answer a call that an instance has signed with its identity document."""
    found = instance_identity.read(environ, calls.body_of(environ))
    if found is None:
        return errors.missing_token(start_response)
    call, instance_id = found
    environ[calls.PARSED] = environ[calls.CALL] = call
    refusal = instance_identity.refusal(call, instance_id, partial(_tags_of, context))
    if refusal:
        return errors.access_denied(call, refusal, start_response)
    with credentials.calling(instance_id):
        return app(environ, start_response)


def _tags_of(context: Context, instance_id: str) -> dict[str, str] | None:
    regions = list(ec2_backends[context.account].values())
    instances = (region.get_instance_by_id(instance_id) for region in regions)
    instance = next((one for one in instances if one and one.state in ("pending", "running")), None)
    return {tag["key"]: tag["value"] for tag in instance.get_tags()} if instance else None


_NO_RULE = "The local cloud can't judge {} on single resources: it knows only policies that name all of them with *."


def _needs_a_rule(context: Context, session: Session, call: Call) -> bool:
    """Whether a policy names resources of an action whose resources the local cloud does not know."""
    if resources.targets(call, context.account) is not None:
        return False
    return any(policy.names_resources(one) for one in rights_of(context, session.role).about(call.action))


def judge(context: Context, session: Session, call: Call) -> str:
    """Return "" if the role may make the call, and AWS's message otherwise."""
    found = resources.targets(call, context.account)
    rights = rights_of(context, session.role)
    keys = _keys(context, session, call)
    # A call that names no resource could affect any.
    asked = [policy.Ask(call.action, target.arn, {**keys, **target.keys}) for target in found or resources.EVERYTHING]
    for arn, service in resources.passed(call, context.account):
        asked.append(policy.Ask("iam:PassRole", arn, {**keys, "iam:passedtoservice": [service]}))
    refused = next(filter(None, (_denial(context, session, rights, ask) for ask in asked)), "")
    arn = f"{partitions.arn()}:iam::{context.account}:role/{session.role}"
    own = Caller(arn, lambda ask: _denial(context, session, rights, replace(ask, keys={**ask.keys, **keys})))
    return refused or kms.refusal(context, call, own)


def may(context: Context, session: Session, action: str, arn: str) -> bool:
    """Judge what AWS's services do in the name of a role, without a call of the role's."""
    return not _denial(context, session, rights_of(context, session.role), policy.Ask(action, arn))


def _denial(context: Context, session: Session, rights: policy.Rights, ask: policy.Ask) -> str:
    return _judged(context, session.role, session.arn(context.account), rights, ask)


def denial(context: Context, role: str, caller: str, ask: policy.Ask) -> str:
    """Judge what a service does with a role that it has assumed: return "", or AWS's message about this caller."""
    return _judged(context, role, caller, rights_of(context, role), ask)


def _judged(context: Context, role: str, caller: str, rights: policy.Rights, ask: policy.Ask) -> str:
    decision = rights.decide(ask)
    if decision is not policy.Decision.ALLOWED:
        return errors.denial(caller, ask.action, ask.resource, decision)
    usage.note(context, role, ask)
    return ""


def _judge_endpoint(context: Context, session: Session, call: Call, document: str | None) -> str:
    """Return "" if the policy of the VPC endpoint that the call came through allows it, and AWS's message otherwise."""
    if not document:
        return ""
    statements, keys = _statements([document]), _keys(context, session, call)
    names = (context.account, f"{partitions.arn()}:iam::{context.account}:root", *keys["aws:principalarn"])
    for target in resources.targets(call, context.account) or resources.EVERYTHING:
        ask = policy.Ask(call.action, target.arn, {**keys, **target.keys}, principals=names)
        if policy.decide(statements, ask) is not policy.Decision.ALLOWED:
            denied = policy.Decision.OUTSIDE_ENDPOINT
            return errors.denial(session.arn(context.account), call.action, target.arn, denied)
    return ""


def _refusal(
    context: Context, session: Session, call: Call, action: str, arn: str, keys: Mapping[str, Sequence[str]]
) -> str:
    """Judge what a service does with the rights of its caller, as CloudFormation does."""
    ask = policy.Ask(action, arn, {**_keys(context, session, call), **keys})
    return _denial(context, session, rights_of(context, session.role), ask)


def rights_of(context: Context, role_name: str) -> policy.Rights:
    """Return the statements of a role's inline and attached policies and its boundary; a role that is gone has none."""
    role = credentials.role_of(context.account, role_name)
    if role is None:
        return policy.Rights()
    attached = [document for managed in role.managed_policies.values() for document in _documents(managed)]
    inline = [text for name, text in role.policies.items() if propagation.is_seen(context, role.id, name)]
    return policy.Rights(_statements([*inline, *attached]), _boundary(context, role.permissions_boundary_arn))


def boundary_of(context: Context, role_name: str) -> str:
    """Return the ARN of a role's permissions boundary; "" if it has none, or there is no such role."""
    role = credentials.role_of(context.account, role_name)
    return (role.permissions_boundary_arn or "") if role else ""


def _boundary(context: Context, arn: str | None) -> list[policy.Statement] | None:
    """Return the statements of a permissions boundary; none of them if its policy was deleted."""
    if not arn:
        return None
    found = iam_backends[context.account][partitions.played()].managed_policies.get(arn)
    return _statements(_documents(found) if found else [])


def _documents(managed: Any) -> list[Any]:
    """Return the document of a managed policy's default version."""
    return [version.document for version in managed.versions if version.is_default]


def _statements(documents: Iterable[Any]) -> list[policy.Statement]:
    return [statement for document in documents for statement in policy.statements_of(_parsed(document))]


def _parsed(document: Any) -> dict[str, Any]:
    if isinstance(document, dict):
        return document
    return json.loads(document if document.lstrip().startswith("{") else unquote(document))


def _keys(context: Context, session: Session, call: Call) -> dict[str, Sequence[str]]:
    return {
        **session.instance_keys,
        "aws:principalarn": [f"{partitions.arn()}:iam::{context.account}:role/{session.role}"],
        "aws:principalaccount": [context.account],
        "aws:userid": [session.user_id],
        "aws:requestedregion": [call.region],
        # The endpoint is loopback HTTP; on AWS the same calls go over TLS.
        "aws:securetransport": ["true"],
        "aws:sourceip": [call.source_ip],
        "aws:currenttime": [context.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")],
    }


def _is_signed_with(environ: Mapping[str, Any], body: bytes, secret: str) -> bool:
    """Return whether the Authorization header was made with `secret` for exactly this request."""
    match = _AUTHORIZATION.fullmatch(environ.get("HTTP_AUTHORIZATION", ""))
    if match is None:
        return False
    # Every service except S3 encodes the path once more.
    safe = "/~%" if match["service"] == "s3" else "/~"
    canonical = _canonical_request(environ, body, match["headers"], safe)
    to_sign = "\n".join(
        ("AWS4-HMAC-SHA256", environ.get("HTTP_X_AMZ_DATE", ""), match["scope"], _sha256(canonical.encode()))
    )
    key = f"AWS4{secret}".encode()
    for part in (match["day"], match["region"], match["service"], "aws4_request", to_sign):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.compare_digest(key.hex(), match["signature"])


def _canonical_request(environ: Mapping[str, Any], body: bytes, signed: str, safe: str) -> str:
    path, _, query = _raw_uri(environ).partition("?")
    pairs = sorted((quote(n, safe="-_.~"), quote(v, safe="-_.~")) for n, v in parse_qsl(query, keep_blank_values=True))
    headers = "".join(f"{name}:{_header(environ, name)}\n" for name in signed.split(";"))
    return "\n".join(
        (
            environ["REQUEST_METHOD"],
            quote(path or "/", safe=safe),
            "&".join(f"{name}={value}" for name, value in pairs),
            headers,
            signed,
            _sha256(body),
        )
    )


def _raw_uri(environ: Mapping[str, Any]) -> str:
    """Return the request target before decoding; servers use different names for it, and some omit it."""
    for name in ("RAW_URI", "REQUEST_URI"):
        if environ.get(name):
            return re.sub(r"^https?://[^/]+", "", environ[name])
    query = environ.get("QUERY_STRING", "")
    return quote(environ.get("PATH_INFO", "/"), safe="/~") + (f"?{query}" if query else "")


def _header(environ: Mapping[str, Any], name: str) -> str:
    key = name.upper().replace("-", "_")
    value = environ.get(key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}", "")
    return " ".join(value.split())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
