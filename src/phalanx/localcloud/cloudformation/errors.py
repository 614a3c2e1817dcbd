"""The errors of CloudFormation's API and of resources."""

from __future__ import annotations


class Refused(Exception):  # noqa: N818 - an answer of the API, not a bug
    """The API call is refused; `code` and `message` are AWS's."""

    def __init__(self, message: str, code: str = "ValidationError") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class ResourceFailed(Exception):  # noqa: N818
    """A resource can't be created or deleted; the message becomes the event's reason."""
