"""What a head answers, taken apart as if an enemy had written it: of the right types and within bounds, or refused.

A job on the head can change its answers (it is the user in whose name phalanx asks), and root there can in any case.
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


class Unbelievable(ClusterError):  # noqa: N818 - reads as what it says of an answer
    """An answer that no runner of phalanx gives."""

    def __init__(self, why: object) -> None:
        super().__init__(
            f"the head answers with something that can't be its answer: {why!s:.300}",
            "A login script that prints, or a job that meddles with its user's files, may cause that.",
        )


def parsed(line: bytes | str) -> dict[str, Any]:
    """The object that a line of JSON holds. Raises Unbelievable."""
    try:
        found = validate.parse(line)
    except Invalid:
        found = None
    if not isinstance(found, dict):
        raise Unbelievable(repr(line[:100]))
    return found


def fields(record: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """Those fields of a record that it has, each as its check returns it. Raises Unbelievable, naming the field."""
    return required(record, {name: check for name, check in checks.items() if name in record})


def required(record: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """The same, where all of them must be there."""
    try:
        return validate.fields(checks, record)
    except Invalid as error:
        raise Unbelievable(error) from error


def text(value: Any) -> str:
    """A text of bounded length; it may hold anything that a text can. Raises Invalid."""
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise Invalid(f"{value!r:.60} is no text")
    # Half of a surrogate pair can't be written anywhere, but for those that stand for a byte of a file's name.
    return re.sub("[\ud800-\udc7f\udd00-\udfff]", "\ufffd", value)


def matching(pattern: str) -> Check:
    """A text that the pattern describes as a whole."""
    compiled = re.compile(pattern)

    def check(value: Any) -> str:
        if not isinstance(value, str) or not compiled.fullmatch(value):
            raise Invalid(f"{value!r:.60} is none")
        return value

    return check


def several(check: Check, most: int = _MOST_TEXTS) -> Check:
    """A list of at most so many, as a tuple."""

    def checked(values: Any) -> tuple[Any, ...]:
        if not isinstance(values, list) or len(values) > most:
            raise Invalid(f"{values!r:.60} is no list of at most {most}")
        return tuple(map(check, values))

    return checked


def perhaps(check: Check) -> Check:
    """None, or what passes."""
    return lambda value: None if value is None else check(value)


def whole(value: Any) -> int:
    """A whole number that is not negative. Raises Invalid."""
    return count(value, 1 << 62)


def exit_code(value: Any) -> int:
    """An exit status, or minus the signal that ended a process. Raises Invalid."""
    if type(value) is not int or not -64 <= value <= 255:
        raise Invalid(f"{value!r:.60} is no exit code")
    return value


def port(value: Any) -> int:
    """A port that something can listen on. Raises Invalid."""
    if not whole(value) or value > 65535:
        raise Invalid(f"{value} is no port")
    return value


def time_s(value: Any) -> float:
    """A moment, in seconds since 1970. Raises Invalid."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LATEST_S:
        raise Invalid(f"{value!r:.60} is no time")
    return value
