"""A transcript of all calls to a cloud's API, which can be shown to others. PHALANX_API_LOG names its file."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime, timezone
from typing import Any

from phalanx.aws import redaction
from phalanx.errors import CloudError

VARIABLE = "PHALANX_API_LOG"


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
        context["phalanx_parameters"] = redaction.parameters(params)

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
        os.write(self._file, (json.dumps(entry) + "\n").encode())


def _outcome(answer: dict[str, Any], exception: Exception | None) -> dict[str, Any]:
    metadata, error = answer.get("ResponseMetadata", {}), answer.get("Error", {})
    message = f"{error['Code']}: {error.get('Message', '')}" if error.get("Code") else str(exception or "")
    return {
        "status": metadata.get("HTTPStatusCode"),
        "request_id": metadata.get("RequestId"),
        **({"error": redaction.text(message)} if message else {}),
    }
