"""Remove from text what must not be shown to others: keys, secrets, account ids, users, and public addresses.

Private addresses, instance ids and request ids stay, because they explain a failure and give access to nothing.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# A parameter with such a name is a secret, or is opaque anyway (NextToken).
_SECRET_NAME = re.compile(r"secret|token|password|credential|plaintext|signature", re.I)
_LONGEST = 500
_PATTERNS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?s)-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", "<key>"),
        # A comment, which often names a person, follows the key on its line.
        (r"\b((?:sk-)?(?:ssh|ecdsa)-[\w@.-]+ )AAAA[A-Za-z0-9+/]{20,}={0,3}(?: [^\s\"',;]+)?", r"\1<key>"),
        (r"\bAAAA[A-Za-z0-9+/]{20,}={0,3}(?: [\w.+-]+@[\w.-]+)?", "<key>"),
        (r"\bSHA256:[A-Za-z0-9+/]{43}=?", "<fingerprint>"),
        # AWS's unique ids: docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html
        (r"\b(?:ABIA|ACCA|AGPA|AIDA|AIPA|AKIA|ANPA|ANVA|APKA|AROA|ASCA|ASIA)[A-Z0-9]{12,}\b", "<key id>"),
        (r"(?i)\b((?:X-Amz-)?(?:Signature|Credential|Security-Token|AWSAccessKeyId)=)[^&\s\"']+", r"\1<secret>"),
        # As an assignment, a header, JSON or XML.
        (
            r"(?i)((?:secret_?(?:access_?)?key|(?:session|security)[_-]?token|password|\"token)"
            r"(?:[\"']?\s*[:=]\s*[\"']?|>))[^\s\"'&,<]+",
            r"\1<secret>",
        ),
        (r"(://)[^/\s:@\"']+:[^/\s@\"']+@", r"\1<secret>@"),
        (r"(:(?:(?:federated-)?user|mfa)/)[^\s\"',]+", r"\1<user>"),
        (r"(:assumed-role/[^\s/\"']+/)(?!i-[0-9a-f]{8,17}(?![\w-]))[^\s\"',]+", r"\1<user>"),
        # Not the end of a UUID, nor a part of a number or of an id.
        (r"(?<![0-9A-Za-z.])(?<![0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-)\d{12}(?![0-9A-Za-z]|\.\d)", "<account>"),
        (r"(?<![\w-])\d{4}-\d{4}-\d{4}(?![\w-])", "<account>"),
        (r"\bec2-(?:\d{1,3}-){3}\d{1,3}\b", "<address>"),
        (r"\b(?:\d{1,3}\.){4}(?=in-addr\.arpa\b)", "<address>."),
        # Names of algorithms, such as chacha20-poly1305@openssh.com, are no addresses.
        (r"(?i)\b[\w.+-]+(?:@|%40)(?!openssh\.com|libssh\.org)(?:[\w-]+\.)+[a-z]{2,}\b", "<e-mail>"),
    )
)
_ADDRESS = re.compile(
    r"(?:(?<![\w.:])::ffff:|(?<![\w.]))(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)|(?<![\w.:])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])"
)


def text(shown: str) -> str:
    """Return a text without what must not be shown to others."""
    for pattern, replacement in _PATTERNS:
        shown = pattern.sub(replacement, shown)
    if (home := str(Path.home())) != "/":
        shown = re.sub(rf"{re.escape(home)}(?![\w-])", "~", shown)
    return _ADDRESS.sub(_without_public_address, shown)


def parameters(value: Any, name: str = "") -> Any:
    """Return an API call's parameters as plain JSON values; of long texts only the length and the SHA-256."""
    if isinstance(value, Mapping):
        return {key: parameters(one, key) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [parameters(one, name) for one in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if _SECRET_NAME.search(name):
        return "<secret>"
    if isinstance(value, str) and len(value) <= _LONGEST:
        return text(value)
    return _summary(value) if isinstance(value, (str, bytes)) else text(str(value))


def _summary(value: str | bytes) -> str:
    data = value.encode() if isinstance(value, str) else value
    return f"<{len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()}>"


def _without_public_address(found: re.Match[str]) -> str:
    try:
        return "<address>" if ipaddress.ip_address(found[0].removeprefix("::ffff:")).is_global else found[0]
    except ValueError:  # a time, a hardware address
        return found[0]
