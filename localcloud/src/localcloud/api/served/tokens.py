"""Tokens of pages: only one that an answer has given is accepted, as on AWS. moto ignores others, or fails.

What each service says of another is in docs/aws-behaviour.md 2.80.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from html import unescape
from typing import Any

from localcloud.api.served import lists, operations
from localcloud.iam.calls import Call

# Of all operations together; beyond that the oldest is forgotten.
_MOST = 1 << 16
# These begin after a name that the caller may choose.
_OF_CALLERS = ("Exclusive", "Key", "Version")
_CHECK_THEMSELVES = ("cloudformation", "tag")
_REFUSALS = {
    "autoscaling": ("InvalidNextToken", "The token '{token}' was invalid"),
    "ec2": ("InvalidParameterValue", "Value ( {token} ) for parameter {name} is invalid. The token is invalid."),
    "elasticfilesystem": ("BadRequest", "Invalid {name}"),
    "elasticmapreduce": ("InvalidRequestException", "{name} '{token}' is not valid."),
    "fsx": ("BadRequest", "Invalid {name}"),
    "iam": ("ValidationError", "Invalid {name}."),
    "lambda": ("InvalidParameterValueException", "Invalid {name}"),
    "logs": ("InvalidParameterException", "The specified nextToken is invalid."),
    "s3": ("InvalidArgument", "The continuation token provided is incorrect"),
    "sns": ("InvalidParameter", "Invalid parameter: {name}"),
    "sqs": ("InvalidParameterValue", "Invalid or expired next token."),
    "ssm": ("InvalidNextToken", "The specified token isn't valid."),
}


class Tokens:
    """The tokens that answers have given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: dict[tuple[str, str], None] = {}

    def refusal(self, call: Call) -> tuple[str, str] | None:
        """Return the code and the message for a token that no answer has given; None for any other request."""
        name = _pages(call).get("input_token", "")
        token = str(call.params.get(name) or "")
        if not token or call.service not in _REFUSALS or (call.action, token) in self._given:
            return None
        code, message = _REFUSALS[call.service]
        return code, message.format(token=token, name=name)

    def remember(self, call: Call, body: bytes) -> None:
        """Remember the token of the next page that an answer gives."""
        name = str(_pages(call).get("output_token", ""))
        pattern = rf'<{name}>([^<]+)</{name}>|"{name}": ?"([^"]+)"'
        # EC2 writes its members' names with a small letter.
        found = re.search(pattern.encode(), body, re.IGNORECASE) if name else None
        if found is None:
            return
        with self._lock:
            self._given[call.action, unescape((found[1] or found[2]).decode())] = None
            if len(self._given) > _MOST:
                del self._given[next(iter(self._given))]


def _pages(call: Call) -> Mapping[str, Any]:
    """Return how an operation has pages, if its tokens are the service's own."""
    model = operations.named(call.service, call.operation)
    if model is None or call.service in _CHECK_THEMSELVES:
        return {}
    pages = lists.pagination(model.service_model.service_name).get(call.operation, {})
    name = pages.get("input_token", "")
    return pages if isinstance(name, str) and not name.startswith(_OF_CALLERS) else {}
