"""Check Signature Version 4 as AWS does: a wrong key or a request that was changed in transit is refused."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=\w+/(?P<scope>(?P<day>\d{8})/(?P<region>[\w-]+)/(?P<service>[\w.-]+)/aws4_request),"
    r"\s*SignedHeaders=(?P<headers>[^,\s]+),\s*Signature=(?P<signature>[0-9a-f]{64})"
)


def is_valid(environ: Mapping[str, Any], body: bytes, secret: str) -> bool:
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
