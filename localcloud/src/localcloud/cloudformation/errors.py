"""The errors of CloudFormation's API and of resources."""

from __future__ import annotations

import logging

from moto.core.exceptions import ServiceException
from werkzeug.exceptions import HTTPException

from localcloud.api.served import sentences

log = logging.getLogger(__name__)


class Refused(Exception):  # noqa: N818 - an answer of the API, not a bug
    """The API call is refused; `code` and `message` are AWS's."""

    def __init__(self, message: str, code: str = "ValidationError") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class ResourceFailed(Exception):  # noqa: N818
    """A resource can't be created, changed or deleted; the message becomes the event's reason."""


def reason_of(error: Exception) -> str:
    """Return an event's reason; log an unexpected exception with its traceback."""
    if isinstance(error, (ResourceFailed, Refused)):
        return str(error)
    if isinstance(error, ServiceException):
        return f"{sentences.reworded(str(error.message))} ({error.code})"
    if isinstance(error, HTTPException):
        return str(getattr(error, "message", None) or error.description)
    log.error("unexpected", exc_info=error)
    return f"Internal Failure: {type(error).__name__}: {error}"
