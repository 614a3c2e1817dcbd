"""Refusals in the format of each AWS protocol, with AWS's messages."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any
from xml.sax.saxutils import escape

from localcloud.iam.calls import Call
from localcloud.iam.policy import Decision

NOT_SERVED = "UnsupportedOperation"
"""The error code of everything that the local cloud does not serve."""
# Beside S3, whose errors have a form of their own.
_REST_IN_XML = ("cloudfront", "route53")
INVALID_TOKEN = "The security token included in the request is invalid."
UNKNOWN_TO_EC2 = "AWS was not able to validate the provided access credentials"
EXPIRED_TOKEN = "The security token included in the request is expired"
WRONG_SIGNATURE = (
    "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key"
    " and signing method. Consult the service documentation for details."
)
MISSING_TOKEN = "Request is missing Authentication Token"


_LIMITS = {Decision.OUTSIDE_BOUNDARY: "permissions boundary", Decision.OUTSIDE_ENDPOINT: "VPC endpoint policy"}


def denial(principal: str, action: str, resource: str, decision: Decision) -> str:
    """Return AWS's message for a call that no policy allows, or that one denies."""
    why = f"because no {_LIMITS.get(decision, 'identity-based policy')} allows the {action} action"
    if decision is Decision.DENIED:
        why = "with an explicit deny in an identity-based policy"
    place = f" on resource: {resource}" if resource != "*" else ""
    return f"User: {principal} is not authorized to perform: {action}{place} {why}"


def missing_token(start_response: Any) -> Iterable[bytes]:
    """Refuse a request without a signature."""
    return _query("MissingAuthenticationToken", MISSING_TOKEN, start_response)


def invalid_token(call: Call, start_response: Any) -> Iterable[bytes]:
    """Refuse a key that this local cloud did not issue, or a wrong session token."""
    if call.service == "ec2":
        return _xml(call, "AuthFailure", UNKNOWN_TO_EC2, start_response, 401)
    return _refused(call, "UnrecognizedClientException", "InvalidClientTokenId", INVALID_TOKEN, start_response)


def wrong_signature(call: Call, start_response: Any) -> Iterable[bytes]:
    """Refuse a request signed with another secret, or not as AWS requires."""
    return _refused(call, "InvalidSignatureException", "SignatureDoesNotMatch", WRONG_SIGNATURE, start_response)


def expired_token(call: Call, start_response: Any) -> Iterable[bytes]:
    """Refuse role credentials after their six hours."""
    return _refused(call, "ExpiredTokenException", "ExpiredToken", EXPIRED_TOKEN, start_response)


def invalid(message: str, start_response: Any) -> Iterable[bytes]:
    """Refuse an invalid parameter of the query protocol."""
    return _query("ValidationError", message, start_response, 400)


def access_denied(call: Call, message: str, start_response: Any) -> Iterable[bytes]:
    """Refuse a call that no policy allows. EC2 has its own error code for this, SQS a header for older clients."""
    if call.service == "ec2":
        return _xml(
            call,
            "UnauthorizedOperation",
            f"You are not authorized to perform this operation. {message}",
            start_response,
        )
    if call.service == "sqs" and call.protocol == "json":
        extra = ("x-amzn-query-error", "AccessDenied;Sender")
        return _json("AccessDeniedException", message, start_response, 403, extra)
    return _refused(call, "AccessDeniedException", "AccessDenied", message, start_response)


def not_served(call: Call, message: str, start_response: Any) -> Iterable[bytes]:
    """Refuse what the local cloud does not serve, in all services with the same code."""
    return refused(call, NOT_SERVED, message, start_response)


def throttled(call: Call, code: str, message: str, start_response: Any) -> Iterable[bytes]:
    """Answer a call that is one too many."""
    status = 503 if call.service == "s3" else {"rest": 429, "ec2": 503}.get(call.protocol, 400)
    return refused(call, code, message, start_response, status)


def refused(call: Call, code: str, message: str, start_response: Any, status: int = 400) -> Iterable[bytes]:
    """Answer a call that is allowed, and refused by its service."""
    if call.service.startswith("s3"):
        return _s3(code, message, start_response, status)
    if _speaks_json(call):
        return _json(code, message, start_response, status)
    return _xml(call, code, message, start_response, status)


def _refused(call: Call, json_code: str, xml_code: str, message: str, start_response: Any) -> Iterable[bytes]:
    """Refuse in the call's protocol: JSON and XML protocols have different codes for the same refusal."""
    if call.service.startswith("s3"):
        return _s3(xml_code, message, start_response, 403)
    if _speaks_json(call):
        return _json(json_code, message, start_response, 400 if call.protocol == "json" else 403)
    return _xml(call, xml_code, message, start_response)


def _speaks_json(call: Call) -> bool:
    return call.protocol == "json" or (call.protocol == "rest" and call.service not in _REST_IN_XML)


def _json(
    code: str, message: str, start_response: Any, status: int, extra: tuple[str, str] | None = None
) -> Iterable[bytes]:
    document = {"__type": f"com.amazon.coral.service#{code}", "message": message, "Message": message}
    headers = [("Content-Type", "application/x-amz-json-1.0"), ("x-amzn-ErrorType", code), *([extra] if extra else [])]
    return _answer(status, json.dumps(document), headers, start_response)


def _xml(call: Call, code: str, message: str, start_response: Any, status: int = 403) -> Iterable[bytes]:
    if call.protocol != "ec2":
        return _query(code, message, start_response, status)
    document = (
        f"<Response><Errors><Error><Code>{code}</Code><Message>{escape(message)}</Message></Error></Errors>"
        f"<RequestID>{uuid.uuid4()}</RequestID></Response>"
    )
    return _answer(status, document, [("Content-Type", "text/xml")], start_response)


def _s3(code: str, message: str, start_response: Any, status: int) -> Iterable[bytes]:
    document = (
        f"<Error><Code>{code}</Code><Message>{escape(message)}</Message><RequestId>{uuid.uuid4()}</RequestId></Error>"
    )
    return _answer(status, document, [("Content-Type", "application/xml")], start_response)


def _query(code: str, message: str, start_response: Any, status: int = 403) -> Iterable[bytes]:
    document = (
        f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
        f"<RequestId>{uuid.uuid4()}</RequestId></ErrorResponse>"
    )
    return _answer(status, document, [("Content-Type", "text/xml")], start_response)


def _answer(status: int, document: str, headers: list[tuple[str, str]], start_response: Any) -> Iterable[bytes]:
    body = document.encode()
    start_response(f"{status} {HTTPStatus(status).phrase}", [*headers, ("Content-Length", str(len(body)))])
    return [body]
