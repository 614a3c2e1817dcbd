"""The tasks of an array: their numbers as `--array` has them, and their ids.

Task 3 of array 261128-075512-3fa9c1 is a job of its own, with the id 261128-075512-3fa9c1.3.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from phalanx.node.validate import Invalid
from phalanx.runner.files.schema import text

if TYPE_CHECKING:
    from typing import Any, Optional, Tuple

MOST_TASKS = 1000
LARGEST_INDEX = 9999
_LONGEST = 1000
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
_TASK = re.compile(r"(.+)\.(0|[1-9]\d{0,3})", re.ASCII)


class Tasks(NamedTuple):
    """The numbers of an array's tasks, ascending, and how many may run at once (None: as many as have room)."""

    indices: Tuple[int, ...]
    at_once: Optional[int]


def tasks_in(wanted: str) -> Tasks:
    """Return what `--array` requests in Slurm's syntax, such as 0-31%4, 0-31:2 or 1,3,7. Raises Invalid."""
    listed, percent, at_once = wanted.partition("%")
    if len(wanted) > _LONGEST:
        raise Invalid(f"{wanted!r:.60} has more than {_LONGEST} characters")
    if percent and not (re.fullmatch(r"\d{1,9}", at_once, re.ASCII) and int(at_once)):
        raise Invalid(f"{wanted!r:.60} has no number of tasks at once after %")
    found = set()
    for part in listed.split(","):
        found.update(_indices(part))
        if len(found) > MOST_TASKS:
            raise Invalid(f"{wanted!r:.60} has more than {MOST_TASKS:,} tasks")
    return Tasks(tuple(sorted(found)), int(at_once) if percent else None)


def _indices(part: str) -> range:
    match = _PART.fullmatch(part)
    if not match:
        raise Invalid(f"{part!r:.60} is neither a number nor a range of numbers")
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if last < first or not step:
        raise Invalid(f"{part!r:.60} is empty: a range goes up, in steps of 1 or more")
    if last > LARGEST_INDEX:
        raise Invalid(f"{last} is too large: the largest number of a task is {LARGEST_INDEX}")
    return range(first, last + 1, step)


def array(value: Any) -> str:
    """Return the value if it names an array's tasks. Raises Invalid."""
    tasks_in(text(value))
    return value


def task_id(array_id: str, index: int) -> str:
    """Return the id of a task, which is also its directory's name."""
    return f"{array_id}.{index}"


def array_of(job_id: str) -> str:
    """Return the id of the array whose task has this id; "" for a job that is no task."""
    match = _TASK.fullmatch(job_id)
    return match[1] if match else ""
