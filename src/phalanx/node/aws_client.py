"""A small AWS client: signed calls of the JSON and query protocols, with retries."""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any, Callable, Optional
from urllib.parse import urlencode

from phalanx.node import wire
from phalanx.node.settings import ON_AWS, Patience
from phalanx.node.sigv4 import Credentials, Request, signed_headers

_TRANSIENT = (
    "Throttl",
    "RequestLimitExceeded",
    "ProvisionedThroughputExceeded",
    "ServiceUnavailable",
    "InternalFailure",
    "InternalServerError",
    # docs/aws-behaviour.md 3.13
    "ScalingActivityInProgress",
    "ResourceContention",
    # A policy may be attached after the instance booted (docs/aws-behaviour.md 6, 'Cycles'). The second is EC2's word.
    "AccessDenied",
    "UnauthorizedOperation",
    # EC2 may not know a new instance or address yet, nor that it runs.
    "InvalidInstanceID",
    "InvalidAllocationID",
    "IncorrectInstanceState",
)
_STALE_KEYS = ("ExpiredToken", "UnrecognizedClient", "InvalidClientTokenId", "InvalidSignature", "RequestExpired")


class AwsError(Exception):
    """A call that failed after all retries. `code` is AWS's error code, "" if there was no answer."""

    def __init__(self, call: str, code: str, message: str) -> None:
        super().__init__(f"{call}: {code}: {message}" if code else f"{call}: {message}")
        self.code = code


class Aws:
    """A client for one region of a partition, with credentials from `keys(fresh)`.

    AWS_ENDPOINT_URL replaces AWS's own endpoints, as in the SDKs.
    """

    def __init__(
        self, region: str, domain: str, keys: Callable[[bool], Credentials], patience: Patience = ON_AWS
    ) -> None:
        self._region, self._domain, self._keys, self._patience = region, domain, keys, patience
        self._endpoint = os.environ.get("AWS_ENDPOINT_URL")

    def json(self, service: str, target: str, payload: dict[str, Any], timeout_s: float = 10) -> dict[str, Any]:
        """Make a call of the JSON protocol; `target` is the value of X-Amz-Target."""
        version = "1.1" if service in ("logs", "elasticmapreduce") else "1.0"
        headers = {"Content-Type": f"application/x-amz-json-{version}", "X-Amz-Target": target}
        body = json.dumps(payload, separators=(",", ":")).encode()
        return json.loads(self._call(service, target, headers, body, timeout_s) or b"{}")

    def query(self, service: str, version: str, action: str, parameters: dict[str, Any]) -> bytes:
        """Make a call of the query protocol; return the XML answer."""
        headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
        body = urlencode({"Action": action, "Version": version, **parameters}).encode()
        return self._call(service, action, headers, body, 10)

    def _call(self, service: str, name: str, headers: dict[str, str], body: bytes, timeout_s: float) -> bytes:
        end = time.monotonic() + self._patience.call_s
        code = ""
        for count in range(1000):
            try:
                return self._once(service, Request("POST", self._url(service), headers, body), timeout_s, code)
            except OSError as error:
                code, message = _reason(service, error)
                if not _helps_again(error, code) or time.monotonic() > end:
                    raise AwsError(name, code, message) from None
            wire.pause(count, self._patience.pause_s)
        raise AwsError(name, code, "gave up")

    def _once(self, service: str, request: Request, timeout_s: float, last_code: str) -> bytes:
        keys = self._keys(last_code.startswith(_STALE_KEYS))
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        signed = signed_headers(request, keys, self._region, service, now)
        return wire.fetch(Request(request.method, request.url, signed, request.body), timeout_s)

    def _url(self, service: str) -> str:
        return (self._endpoint or f"https://{service}.{self._region}.{self._domain}").rstrip("/") + "/"


def _reason(service: str, error: OSError) -> tuple[str, str]:
    """Return AWS's code and message from an error answer in JSON or XML."""
    if not isinstance(error, wire.HttpError):
        return "", f"{service} did not answer: {error or repr(error)}"
    text = error.body.decode("utf-8", "replace")
    code = re.search(r'"__type"\s*:\s*"(?:[^"]*#)?([^"]+)"|<Code>([^<]+)<', text)
    message = re.search(r'"[mM]essage"\s*:\s*"((?:[^"\\]|\\.)*)"|<Message>([^<]*)<', text)
    return _group(code) or f"HTTP {error.status}", _group(message) or text[:500]


def _group(match: Optional[re.Match[str]]) -> str:
    return (match.group(1) or match.group(2) or "") if match else ""


def _helps_again(error: OSError, code: str) -> bool:
    if not isinstance(error, wire.HttpError) or error.status >= 500 or error.status == 429:
        return True
    return code.startswith(_TRANSIENT + _STALE_KEYS)
