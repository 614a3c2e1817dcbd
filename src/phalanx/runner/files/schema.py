"""Validates what jobs can write before it is used or shown, on the head and on the user's machine.

Every job can write into every job's directory, and so into the head's answers.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid, count, fields

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Sequence, Tuple

    Check = Callable[[Any], Any]

FORMAT = 1
"""The number of the format of a job's records: its description and its state."""
LONGEST_GRACE_S = 600
"""The longest that a job's processes may have after SIGTERM."""
LARGEST_PRIORITY = 1000
"""The highest priority of a job that waits; the lowest is its negative."""
UNIT_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
"""The units in which times are written."""
_JOB_ID = re.compile("[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_COMMIT = re.compile("([0-9a-f]{40,64}(-dirty)?)?")
# A number, or YARN's URL. What began with "-" would be an option of the commands that get it, such as scancel.
_ALLOCATION_ID = re.compile("[A-Za-z0-9][!-~]{0,511}")
_LARGEST = 1 << 62
_LONGEST_WORDS, _MOST_LINES = 8000, 100


def is_job_id(name: str) -> bool:
    """Return whether this is a valid id for a job, and name for its directory."""
    return bool(_JOB_ID.fullmatch(name))


def sweep_report(value: Any) -> Dict[str, Any]:
    """Return a node's report on the end of a job's processes there. Raises Invalid."""
    return fields(_REPORT, value)


def output_process(value: Any) -> Dict[str, Any]:
    """Return the description of a process with output. Raises Invalid."""
    return fields(_PROCESS, value)


def text(value: Any) -> str:
    """Return the value if it is a text. Raises Invalid, as all checks here."""
    if not isinstance(value, str):
        raise Invalid(f"{type(value).__name__} is not a text")
    return value


def words(value: Any) -> str:
    """Return the beginning of a text for people, which a job may have written. Raises Invalid."""
    return text(value)[:_LONGEST_WORDS]


def lines(value: Any) -> Tuple[str, ...]:
    """Return the first of a list's texts, cut as `words` does. Raises Invalid."""
    return tuple(map(words, texts(value)[:_MOST_LINES]))


def job_id(value: Any) -> str:
    if not is_job_id(text(value)):
        raise Invalid("no job has such an id")
    return value


def file_name(value: Any) -> str:
    if "/" in text(value) or "\0" in value or value in ("", ".", ".."):
        raise Invalid("no file has such a name")
    return value


def allocation_id(value: Any) -> str:
    if not _ALLOCATION_ID.fullmatch(text(value)):
        raise Invalid("no batch scheduler's job has such an id")
    return value


def commit(value: Any) -> str:
    if not _COMMIT.fullmatch(text(value)):
        raise Invalid("no commit has such an id")
    return value


def number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise Invalid(f"{type(value).__name__} is not a number")
    return value


def positive(value: Any) -> int:
    if not count(value):
        raise Invalid("0 is too small")
    return value


def grace(value: Any) -> int:
    return count(value, LONGEST_GRACE_S)


def whole(value: Any) -> int:
    if type(value) is not int or abs(value) > _LARGEST:
        raise Invalid(f"{type(value).__name__} is not a whole number")
    return value


def priority(value: Any) -> int:
    if abs(whole(value)) > LARGEST_PRIORITY:
        raise Invalid(f"{value} is no priority")
    return value


def exit_code(value: Any) -> int:
    return count(value, 255)


def large(value: Any) -> int:
    return count(value, _LARGEST)


def one_of(words: Sequence[str]) -> Check:
    """Return a check for a text that is one of these."""

    def checked(value: Any) -> str:
        if value not in words:
            raise Invalid(f"{value!r:.60} is none of {', '.join(words)}")
        return value

    return checked


def optional(other: Any, check: Check) -> Check:
    """Return a check that lets `other` pass, too."""
    return lambda value: value if value == other else check(value)


def tuple_of(check: Check) -> Check:
    """Return a check for a list; it returns a tuple."""

    def checked(values: Any) -> Tuple[Any, ...]:
        if not isinstance(values, (list, tuple)):
            raise Invalid(f"{type(values).__name__} is not a list")
        return tuple(map(check, values))

    return checked


def by_name(check: Check) -> Check:
    """Return a check for an object with names of any kind."""

    def checked(value: Any) -> Dict[str, Any]:
        if not isinstance(value, dict):
            raise Invalid(f"{type(value).__name__} is not an object")
        return {text(name): check(one) for name, one in value.items()}

    return checked


texts = tuple_of(text)
_REPORT: Dict[str, Check] = {"ended": texts, "left": texts, "boot_id": text}
_PROCESS: Dict[str, Check] = {"number": count, "label": text, "node": text, "file": file_name}
