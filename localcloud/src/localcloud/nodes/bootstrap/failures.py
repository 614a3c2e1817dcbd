"""What goes wrong on purpose in the programs of this package: they print it, and end with status 1."""

from __future__ import annotations


class FailedError(Exception):
    """A step of cfn-init, a request or an argument failed; the message says which and why."""
