"""Check the types and bounds of what a head answers, as if an attacker had written it.

A job on the head can change the answers, because it runs as the user that phalanx logs in as. So can root there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from phalanx.errors import ClusterError
from phalanx.node import validate
from phalanx.node.validate import Invalid, count

Check = Callable[[Any], Any]

LONGEST_LINE_BYTES = 16 << 20
_LONGEST_TEXT = 1 << 20
_MOST_TEXTS = 100_000
_LATEST_S = 1e11


class InvalidAnswerError(ClusterError):
    """An answer that phalanx's own runner never gives."""

    code = "invalid-answer"

    def __init__(self, why: object) -> None:
        super().__init__(
            f"the head sent an invalid answer: {why!s:.300}",
            "A login script that prints something, or a job that changes files of its user, may cause this.",
        )


def parsed(line: bytes | str) -> dict[str, Any]:
    """Parse a line that must be a JSON object. Raises InvalidAnswerError."""
    try:
        found = validate.parse(line)
    except Invalid:
        found = None
    if not isinstance(found, dict):
        raise InvalidAnswerError(repr(line[:100]))
    return found


def fields(record: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """Check the fields that a record has, and return their values. Raises InvalidAnswerError."""
    return required(record, {name: check for name, check in checks.items() if name in record})


def required(record: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """Check the fields of a record as `fields` does; all of them must be present."""
    try:
        return validate.fields(checks, record)
    except Invalid as error:
        raise InvalidAnswerError(error) from error


def record(value: Any) -> dict[str, Any]:
    """Check that the value is an object. Raises Invalid."""
    if not isinstance(value, dict):
        raise Invalid(f"{value!r:.60} is not an object")
    return value


def text(value: Any) -> str:
    """Check that the value is a string of bounded length. Raises Invalid."""
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise Invalid(f"{value!r:.60} is not a string")
    # A lone surrogate can't be encoded, except those by which Python represents a byte of a file name.
    return re.sub("[\ud800-\udc7f\udd00-\udfff]", "\ufffd", value)


def matching(pattern: str) -> Check:
    """Return a check for a string that matches the whole pattern."""
    compiled = re.compile(pattern)

    def check(value: Any) -> str:
        if not isinstance(value, str) or not compiled.fullmatch(value):
            raise Invalid(f"{value!r:.60} is invalid")
        return value

    return check


def list_of(check: Check, most: int = _MOST_TEXTS) -> Check:
    """Return a check for a list of at most `most` items, which it returns as a tuple."""

    def checked(values: Any) -> tuple[Any, ...]:
        if not isinstance(values, list) or len(values) > most:
            raise Invalid(f"{values!r:.60} is not a list of at most {most} items")
        return tuple(map(check, values))

    return checked


def optional(check: Check) -> Check:
    """Return a check that also accepts None."""
    return lambda value: None if value is None else check(value)


def whole(value: Any) -> int:
    """Check that the value is a whole number and not negative. Raises Invalid."""
    return count(value, 1 << 62)


def exit_code(value: Any) -> int:
    """Check that the value is an exit status, or minus the signal that ended a process. Raises Invalid."""
    if type(value) is not int or not -64 <= value <= 255:
        raise Invalid(f"{value!r:.60} is not an exit code")
    return value


def port(value: Any) -> int:
    """Check that the value is a port that something can listen on. Raises Invalid."""
    if not whole(value) or value > 65535:
        raise Invalid(f"{value} is not a port")
    return value


def time_s(value: Any) -> float:
    """Check that the value is a time in seconds since 1970. Raises Invalid."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LATEST_S:
        raise Invalid(f"{value!r:.60} is not a time")
    return value
