"""Signs requests with an access key (Signature Version 4)."""

from __future__ import annotations

import hashlib
import hmac
import time
import urllib.parse
from typing import NamedTuple


class Keys(NamedTuple):
    """Credentials of an IAM user or, with a token, of a role."""

    access_key: str
    secret_key: str
    token: str = ""


def signed(keys: Keys, method: str, url: str, body: bytes, scope: str, headers: dict[str, str]) -> dict[str, str]:
    """Return all headers of a signed request; `headers` contains Host, and `scope` is `region/service`."""
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    digest = hashlib.sha256(body).hexdigest()
    shown = {**headers, "X-Amz-Date": now, "X-Amz-Content-Sha256": digest}
    if keys.token:
        shown["X-Amz-Security-Token"] = keys.token
    lower = {name.lower(): value.strip() for name, value in shown.items()}
    names = ";".join(sorted(lower))
    parts = urllib.parse.urlsplit(url)
    listed = "".join(f"{name}:{lower[name]}\n" for name in sorted(lower))
    request = "\n".join((method, parts.path or "/", parts.query, listed, names, digest))
    whole = f"{now[:8]}/{scope}/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", now, whole, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{keys.secret_key}".encode()
    for part in whole.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    credential = f"Credential={keys.access_key}/{whole}"
    return {**shown, "Authorization": f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={names}, Signature={signature}"}
