"""What CloudFormation refuses, with the code that its API gives."""

from __future__ import annotations


class Refused(Exception):  # noqa: N818 - it is a verdict, named as the docs name it
    """The API call is refused: `code` and `message` are AWS's own."""

    def __init__(self, message: str, code: str = "ValidationError") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class ResourceFailed(Exception):  # noqa: N818
    """A resource can't be created or deleted; the text becomes the event's reason."""
