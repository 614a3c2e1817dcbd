"""The signature of instances' identity documents, which the metadata service writes and the API believes."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets

# Of this process, which runs both.
_KEY = secrets.token_bytes(32)


def signature(document: str) -> str:
    """Return the signature of an instance's identity document."""
    return base64.b64encode(hmac.digest(_KEY, document.encode(), "sha256")).decode()


def believed(document: str, signed: str) -> dict[str, str] | None:
    """Return a document that came in base64; None if this is not its signature."""
    try:
        text = base64.b64decode(document, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return json.loads(text) if hmac.compare_digest(signature(text), signed) else None
