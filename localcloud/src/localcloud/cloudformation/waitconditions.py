"""The server behind a wait handle's URL: in AWS, an S3 bucket that accepts a PUT (docs/aws-behaviour.md 1.10)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from localcloud.api import partitions
from localcloud.cloudformation.engine import Engine
from localcloud.cloudformation.resources.waiting import WAIT_PATH
from localcloud.cloudformation.signals import read_signal
from localcloud.iam import policy
from localcloud.iam.calls import ENDPOINT_POLICY

MAX_BODY_BYTES = 64 * 1024
# An account of AWS's, which signs the URLs of wait handles.
_OWNER = "000000000000"
_REFUSAL = b'<?xml version="1.0"?><Error><Code>%s</Code><Message>%s</Message></Error>'


def answer(engine: Engine, handle: str, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """Receive a signal for the wait handle `handle` (its whole URL, as Ref returns it)."""
    refusal = _refusal(environ) or _refusal_of_endpoint(environ.get(ENDPOINT_POLICY), handle)
    if refusal:
        return _refuse(start_response, *refusal)
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if not engine.signal_handle(handle, read_signal(environ["wsgi.input"].read(min(length, MAX_BODY_BYTES)))):
        return _refuse(start_response, "403 Forbidden", b"AccessDenied", b"Access Denied")
    start_response("200 OK", [("Content-Length", "0")])
    return [b""]


def _refusal(environ: dict[str, Any]) -> tuple[str, bytes, bytes] | None:
    if environ["REQUEST_METHOD"] != "PUT":
        return "405 Method Not Allowed", b"MethodNotAllowed", b"A wait handle takes PUT only."
    if environ.get("CONTENT_TYPE"):
        # The URL is signed for an empty content type: S3 refuses the defaults of curl and urllib.
        return "403 Forbidden", b"SignatureDoesNotMatch", b"Content-Type must be empty or left out."
    return None


def _refusal_of_endpoint(document: str | None, handle: str) -> tuple[str, bytes, bytes] | None:
    """Judge the signal by the policy of S3's endpoint in the VPC: an account of AWS's signed its URL."""
    if not document:
        return None
    region = handle.split(WAIT_PATH)[1].partition("/")[0]
    bucket = f"{partitions.arn()}:s3:::cloudformation-waitcondition-{region}/signal"
    ask = policy.Ask("s3:PutObject", bucket, {"aws:principalaccount": [_OWNER]}, principals=(_OWNER,))
    if policy.decide(policy.statements_of(json.loads(document)), ask) is policy.Decision.ALLOWED:
        return None
    return "403 Forbidden", b"AccessDenied", b"Access Denied"


def _refuse(start_response: Callable[..., Any], status: str, code: bytes, message: bytes) -> list[bytes]:
    start_response(status, [("Content-Type", "application/xml")])
    return [_REFUSAL % (code, message)]
