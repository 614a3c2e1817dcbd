"""An API request taken apart: service, operation and parameters, whichever of AWS's protocols it speaks."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

# Names in the signature's scope that differ from the prefix of IAM actions.
_PREFIXES = {"monitoring": "cloudwatch", "email": "ses"}
# AWS authorizes a batch as the single operation.
_AUTHORIZED_AS = {
    "SendMessageBatch": "SendMessage",
    "DeleteMessageBatch": "DeleteMessage",
    "ChangeMessageVisibilityBatch": "ChangeMessageVisibility",
}
_SCOPE = re.compile(r"Credential=(?P<key>[^/,\s]+)/(?P<day>\d+)/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request")
BODY_LIMIT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Call:
    """What a request asks for. `protocol` is json, query, ec2 or rest."""

    access_key_id: str
    region: str
    service: str
    operation: str
    protocol: str
    params: Mapping[str, Any] = field(default_factory=dict)
    source_ip: str = ""
    body: bytes = field(default=b"", repr=False)

    @property
    def action(self) -> str:
        """The IAM action: `sqs:SendMessage`."""
        return f"{self.service}:{_AUTHORIZED_AS.get(self.operation, self.operation)}"

    def values(self, name: str) -> list[str]:
        """A list parameter of the query protocol: Name.1, Name.2 or Name.member.1; else the single value."""
        numbered = re.compile(re.escape(name) + r"(\.member)?\.\d+")
        found = [str(value) for key, value in self.params.items() if numbered.fullmatch(key)]
        single = self.params.get(name)
        return found or (list(single) if isinstance(single, list) else [str(single)] if single else [])


def read(environ: dict[str, Any]) -> Call | None:
    """The call in a WSGI environment, whose body can be read again afterwards; None without a signature."""
    scope = _SCOPE.search(environ.get("HTTP_AUTHORIZATION", ""))
    if scope is None:
        return None
    service = scope["service"].lower()
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    body = _body(environ)
    protocol, operation, params = _json_call(target, body) if target else _form_call(environ, body, service)
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


def _body(environ: dict[str, Any]) -> bytes:
    length = min(int(environ.get("CONTENT_LENGTH") or 0), BODY_LIMIT_BYTES)
    body = environ["wsgi.input"].read(length) if length else b""
    environ["wsgi.input"] = io.BytesIO(body)
    return body


def _json_call(target: str, body: bytes) -> tuple[str, str, Mapping[str, Any]]:
    try:
        params = json.loads(body or b"{}")
    except ValueError:
        params = {}
    return "json", target.rpartition(".")[2], params if isinstance(params, dict) else {}


def _form_call(environ: Mapping[str, Any], body: bytes, service: str) -> tuple[str, str, Mapping[str, Any]]:
    form = body.decode("utf-8", "replace") if "urlencoded" in environ.get("CONTENT_TYPE", "") else ""
    params = dict(parse_qsl(form or environ.get("QUERY_STRING", ""), keep_blank_values=True))
    if "Action" not in params:
        # REST services name no operation; whoever is refused one at least reads which request it was.
        return "rest", f"{environ.get('REQUEST_METHOD', '')} {environ.get('PATH_INFO', '')}", params
    return ("ec2" if service == "ec2" else "query"), params["Action"], params
