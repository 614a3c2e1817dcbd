"""AWS Signature Version 4 for requests with a body in memory (docs.aws.amazon.com/IAM, 'Signing AWS API requests')."""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple, Optional
from urllib.parse import parse_qsl, quote, urlsplit


class Credentials(NamedTuple):
    """Keys of a role or a user; temporary ones have a `token`. Never printed."""

    access_key_id: str
    secret_access_key: str
    token: Optional[str] = None

    def __repr__(self) -> str:
        return f"Credentials({self.access_key_id})"


class Request(NamedTuple):
    """An HTTP request. The path in `url` is already percent-encoded."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes = b""


def signed_headers(request: Request, credentials: Credentials, region: str, service: str, now: str) -> dict[str, str]:
    """Return all headers to send: the request's own, Host, X-Amz-Date and Authorization.

    `now` is UTC as `20261121T080000Z`.
    """
    headers = {**request.headers, "Host": urlsplit(request.url).netloc, "X-Amz-Date": now}
    if credentials.token:
        headers["X-Amz-Security-Token"] = credentials.token
    scope = f"{now[:8]}/{region}/{service}/aws4_request"
    # Every service except S3 encodes the path once more.
    names, canonical = _canonical(request, headers, "/~%" if service == "s3" else "/~")
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{_sha256(canonical.encode())}"
    signature = _hmac(_signing_key(credentials, scope), text).hex()
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers


def _canonical(request: Request, headers: dict[str, str], safe: str) -> tuple[str, str]:
    """Return the names of the signed headers, and the canonical request."""
    parts = urlsplit(request.url)
    lower = sorted((name.lower(), " ".join(value.split())) for name, value in headers.items())
    names = ";".join(name for name, _ in lower)
    lines = [request.method, quote(parts.path or "/", safe=safe), _canonical_query(parts.query)]
    lines += [f"{name}:{value}" for name, value in lower]
    return names, "\n".join([*lines, "", names, _sha256(request.body)])


def _canonical_query(query: str) -> str:
    pairs = sorted((_quote(key), _quote(value)) for key, value in parse_qsl(query, keep_blank_values=True))
    return "&".join(f"{key}={value}" for key, value in pairs)


def _signing_key(credentials: Credentials, scope: str) -> bytes:
    key = b"AWS4" + credentials.secret_access_key.encode()
    for part in scope.split("/"):
        key = _hmac(key, part)
    return key


def _quote(text: str) -> str:
    return quote(text, safe="-_.~")


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
