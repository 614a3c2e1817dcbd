"""Parse an API request in any of AWS's protocols: its service, operation and parameters."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from localcloud.api.served import operations

# Names in the signature's scope that differ from the prefix of IAM actions.
_PREFIXES = {"monitoring": "cloudwatch", "email": "ses", "tagging": "tag"}
# AWS authorizes a batch as the single operation, and calls on objects by a few actions (docs/aws-behaviour.md 12.1).
_AUTHORIZED_AS = {
    "HeadBucket": "ListBucket",
    "ListObjects": "ListBucket",
    "ListObjectsV2": "ListBucket",
    "GetBucketEncryption": "GetEncryptionConfiguration",
    "GetPublicAccessBlock": "GetBucketPublicAccessBlock",
    "HeadObject": "GetObject",
    "CreateMultipartUpload": "PutObject",
    "UploadPart": "PutObject",
    "CompleteMultipartUpload": "PutObject",
    "ListParts": "ListMultipartUploadParts",
    "SendMessageBatch": "SendMessage",
    "DeleteMessageBatch": "DeleteMessage",
    "ChangeMessageVisibilityBatch": "ChangeMessageVisibility",
}
_SCOPE = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>\w+)/(?P<day>\d+)/(?P<region>[\w-]+)/(?P<service>[\w.-]+)/aws4_request,"
)
_TARGET = re.compile(r"\w+\.(?P<operation>\w+)")
CALL = "localcloud.raw-call"
"""The key of a request's Call in its WSGI environment, once it was parsed."""
BODY_LIMIT_BYTES = 16 * 1024 * 1024
# Where the parsed request stands in its WSGI environment, for what comes after the check of its permissions.
PARSED = "localcloud.call"
# Where the policy of the VPC endpoint stands that a request came through, as JSON; it has to allow the call, too.
ENDPOINT_POLICY = "localcloud.endpoint-policy"


@dataclass(frozen=True)
class Call:
    """A parsed request. `protocol` is json, query, ec2 or rest."""

    access_key_id: str
    region: str
    service: str
    operation: str
    protocol: str
    params: Mapping[str, Any] = field(default_factory=dict)
    source_ip: str = ""
    body: bytes = field(default=b"", repr=False)

    @property
    def is_form(self) -> bool:
        """Whether the parameters are a form's, with names such as `Tag.1.Key`."""
        return self.protocol in ("query", "ec2")

    @property
    def action(self) -> str:
        """Return the IAM action, such as `sqs:SendMessage`."""
        return f"{self.service}:{_AUTHORIZED_AS.get(self.operation, self.operation)}"

    def values(self, name: str) -> list[str]:
        """Return a list parameter of the query protocol: Name.1, Name.2 or Name.member.1; else the single value."""
        numbered = re.compile(re.escape(name) + r"(\.member)?\.\d+")
        found = [str(value) for key, value in self.params.items() if numbered.fullmatch(key)]
        single = self.params.get(name)
        return found or (list(single) if isinstance(single, list) else [str(single)] if single else [])


def read(environ: dict[str, Any]) -> Call | None:
    """Return the call in a WSGI environment, whose body can be read again afterwards; None without a signature.

    moto looks for an operation and its parameters in several places. Only a request in the form that SDKs send is
    accepted, so that moto performs exactly the operation that was authorized here.
    """
    scope = _SCOPE.match(environ.get("HTTP_AUTHORIZATION", ""))
    if scope is None:
        return None
    service = scope["service"].lower()
    body = body_of(environ)
    protocol, operation, params = (
        _json_call(environ, body) or _form_call(environ, body, service) or _rest_call(environ, body, service)
    )
    if protocol == "json":
        _put_body(environ, unmistakable(params))
    return Call(
        access_key_id=scope["key"],
        region=scope["region"],
        service=_PREFIXES.get(service, service),
        operation=operation,
        protocol=protocol,
        params=params,
        source_ip=environ.get("REMOTE_ADDR", ""),
        body=body,
    )


_Read = tuple[str, str, Mapping[str, Any]]


def body_of(environ: dict[str, Any]) -> bytes:
    """Return a request's body, which can be read again afterwards."""
    length = min(int(environ.get("CONTENT_LENGTH") or 0), BODY_LIMIT_BYTES)
    body = environ["wsgi.input"].read(length) if length > 0 else b""
    _put_body(environ, body)
    return body


def _put_body(environ: dict[str, Any], body: bytes) -> None:
    environ["wsgi.input"] = io.BytesIO(body)
    environ["CONTENT_LENGTH"] = str(len(body))


def unmistakable(params: Mapping[str, Any]) -> bytes:
    """Return the same JSON without characters that moto would take for a form, whose `Action` it prefers."""
    return json.dumps(params).replace("&", "\\u0026").replace("=", "\\u003d").encode()


def _is_plain(environ: Mapping[str, Any]) -> bool:
    return (environ["REQUEST_METHOD"], environ.get("PATH_INFO"), environ.get("QUERY_STRING", "")) == ("POST", "/", "")


def _json_call(environ: Mapping[str, Any], body: bytes) -> _Read | None:
    target = _TARGET.fullmatch(environ.get("HTTP_X_AMZ_TARGET", ""))
    kind = environ.get("CONTENT_TYPE", "")
    if target is None or not kind.startswith("application/x-amz-json") or not _is_plain(environ):
        return None
    try:
        params = json.loads(body or b"{}")
    except ValueError:
        return None
    return ("json", target["operation"], params) if isinstance(params, dict) else None


def _form_call(environ: Mapping[str, Any], body: bytes, service: str) -> _Read | None:
    kind = environ.get("CONTENT_TYPE", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded" or "HTTP_X_AMZ_TARGET" in environ or not _is_plain(environ):
        return None
    pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)
    params = dict(pairs)
    if "Action" not in params or len(params) < len(pairs):
        return None
    return ("ec2" if service == "ec2" else "query"), params["Action"], params


def _rest_call(environ: Mapping[str, Any], body: bytes, service: str) -> _Read:
    """Return the request itself as the operation if no operation is like it; a refusal then shows it."""
    try:
        operation, params = operations.of_rest(service, environ, body)
    except ValueError:
        operation, params = "", {}
    return "rest", operation or f"{environ['REQUEST_METHOD']} {environ.get('PATH_INFO', '')}", params
