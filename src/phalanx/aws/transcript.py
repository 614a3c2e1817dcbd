"""A transcript of all calls to a cloud's API, which can be shown to others. PHALANX_API_LOG names its file.

Keys, secrets, account ids, users and public addresses are removed. Private addresses, instance ids and request ids
stay, because they explain a failure and give access to nothing.

With PHALANX_API_ANSWERS, each line contains the shape of the answer, too: of its texts only those that the API's model
lists, and states.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from phalanx.errors import CloudError

VARIABLE = "PHALANX_API_LOG"
WITH_ANSWERS = "PHALANX_API_ANSWERS"
# A parameter with such a name is a secret, or is opaque anyway (NextToken).
_SECRET_NAME = re.compile(r"secret|token|password|credential|plaintext|signature", re.I)
_LONGEST = 500
# A state is no secret where the model does not list its values, either; nor is a key that looks like a name of the API.
_STATE_NAME = re.compile(r"(?:State|Status)$")
_STATE = re.compile(r"[A-Za-z][A-Za-z_ -]{1,50}")
_KEY = re.compile(r"[A-Za-z][A-Za-z_:.-]{0,60}")
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


def attach(client: Any) -> None:
    """Append each attempt of the client's calls to the file, if the variable names one. Raises CloudError."""
    if path := os.environ.get(VARIABLE):
        _Recorder(path).listen(client.meta.events)


class _Recorder:
    """Writes a line of JSON for each attempt of a call, so a call that botocore retries has several."""

    def __init__(self, path: str) -> None:
        try:
            # Never closed: clients live as long as the process. O_APPEND keeps lines of several processes whole.
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CloudError(
                f"{VARIABLE}: can't write {path}: {error.strerror}", "Name a file, or unset it.", code="cannot-write"
            ) from None

    def listen(self, events: Any) -> None:
        events.register("before-parameter-build", self._note_parameters)
        events.register("request-created", self._note_start)
        events.register("response-received", self._write)

    def _note_parameters(self, params: Any, model: Any, context: dict[str, Any], **_: Any) -> None:
        context["phalanx_call"] = f"{model.service_model.service_name}:{model.name}"
        context["phalanx_parameters"] = redacted_parameters(params)
        context["phalanx_shape"] = model.output_shape

    def _note_start(self, request: Any, **_: Any) -> None:
        request.context["phalanx_started_s"] = time.monotonic()

    def _write(self, parsed_response: Any, context: dict[str, Any], exception: Any, **_: Any) -> None:
        entry = {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "call": context["phalanx_call"],
            "parameters": context["phalanx_parameters"],
            "attempt": context["retries"]["attempt"],
            "took_s": round(time.monotonic() - context["phalanx_started_s"], 3),
            **_outcome(parsed_response or {}, exception),
        }
        if os.environ.get(WITH_ANSWERS) and parsed_response and "error" not in entry:
            entry["answer"] = shape_of(parsed_response, context["phalanx_shape"])
        os.write(self._file, (json.dumps(entry) + "\n").encode())


def _outcome(answer: dict[str, Any], exception: Exception | None) -> dict[str, Any]:
    metadata, error = answer.get("ResponseMetadata", {}), answer.get("Error", {})
    message = f"{error['Code']}: {error.get('Message', '')}" if error.get("Code") else str(exception or "")
    return {
        "status": metadata.get("HTTPStatusCode"),
        "request_id": metadata.get("RequestId"),
        **({"error": redacted(message)} if message else {}),
    }


def shape_of(value: Any, shape: Any, name: str = "") -> Any:
    """Return an answer with its members, numbers and truth values; of its texts only states and listed values.

    `shape` is botocore's, None for what the model does not describe.
    """
    kind = getattr(shape, "type_name", "")
    if kind == "structure":
        return {key: shape_of(value[key], one, key) for key, one in shape.members.items() if key in value}
    if kind == "list":
        return [shape_of(one, shape.member, name) for one in value]
    if kind == "map":
        pairs = ((key if _KEY.fullmatch(key) else "*", one) for key, one in value.items())
        return {redacted(key): shape_of(one, shape.value, key) for key, one in pairs}
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        is_listed = value in getattr(shape, "enum", ()) or (_STATE_NAME.search(name) and _STATE.fullmatch(value))
        return value if is_listed else "<text>" if value else ""
    return f"<{type(value).__name__}>"


def redacted(shown: str) -> str:
    """Return a text without what must not be shown to others."""
    for pattern, replacement in _PATTERNS:
        shown = pattern.sub(replacement, shown)
    if (home := str(Path.home())) != "/":
        shown = re.sub(rf"{re.escape(home)}(?![\w-])", "~", shown)
    return _ADDRESS.sub(_without_public_address, shown)


def redacted_parameters(value: Any, name: str = "") -> Any:
    """Return an API call's parameters as plain JSON values; of long texts only the length and the SHA-256."""
    if isinstance(value, Mapping):
        return {key: redacted_parameters(one, key) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted_parameters(one, name) for one in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if _SECRET_NAME.search(name):
        return "<secret>"
    if isinstance(value, str) and len(value) <= _LONGEST:
        return redacted(value)
    return _summary(value) if isinstance(value, (str, bytes)) else redacted(str(value))


def _summary(value: str | bytes) -> str:
    data = value.encode() if isinstance(value, str) else value
    return f"<{len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()}>"


def _without_public_address(found: re.Match[str]) -> str:
    try:
        return "<address>" if ipaddress.ip_address(found[0].removeprefix("::ffff:")).is_global else found[0]
    except ValueError:  # a time, a hardware address
        return found[0]
