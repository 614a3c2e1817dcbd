"""Validates a job's state before it is used or shown, on the head and on the user's machine.

Every job can write into every job's directory, and so into the head's answers.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid, count, fields, require_format, truth

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

    Check = Callable[[Any], Any]

FORMAT = 1
"""The number of the format of a job's records: its description and its state."""
FINAL = ("succeeded", "failed", "stopped", "lost")
DAMAGED = "damaged"
"""The state of a job whose record is invalid; no record contains it."""
_STATES = ("pending", "running", *FINAL)
_JOB_ID = re.compile("[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_LARGEST = 1 << 62


def is_job_id(name: str) -> bool:
    """Return whether this is a valid id for a job, and name for its directory."""
    return bool(_JOB_ID.fullmatch(name))


def job_state(value: Any, job_id: Optional[str] = None) -> Dict[str, Any]:
    """Return the known fields of this job's state, ignoring others. Raises Invalid, and Newer for a newer phalanx's."""
    require_format(value, FORMAT, f"job {job_id}" if job_id else "the job")
    state = fields(_STATE, value)
    if job_id not in (None, state["id"]):
        raise Invalid("it belongs to another job")
    return state


def sweep_report(value: Any) -> Dict[str, Any]:
    """Return a node's report on the end of a job's processes there. Raises Invalid."""
    return fields(_REPORT, value)


def output_process(value: Any) -> Dict[str, Any]:
    """Return the description of a process with output. Raises Invalid."""
    return fields(_PROCESS, value)


def runner(value: Any) -> Dict[str, Any]:
    """Return the identity of a job's runner, or of the process that receives its submission. Raises Invalid."""
    return fields(_RUNNER, value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Invalid(f"{type(value).__name__} is not a text")
    return value


def _id(value: Any) -> str:
    if not is_job_id(_text(value)):
        raise Invalid("no job has such an id")
    return value


def _file_name(value: Any) -> str:
    if "/" in _text(value) or "\0" in value or value in ("", ".", ".."):
        raise Invalid("no file has such a name")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise Invalid(f"{type(value).__name__} is not a number")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) > _LARGEST:
        raise Invalid(f"{type(value).__name__} is not a whole number")
    return value


def _large(value: Any) -> int:
    return count(value, _LARGEST)


def _state_name(value: Any) -> str:
    if value not in (*_STATES, DAMAGED):
        raise Invalid("no job has such a state")
    return value


def _or(other: Any, check: Check) -> Check:
    return lambda value: value if value == other else check(value)


def _list(check: Check) -> Check:
    def checked(values: Any) -> List[Any]:
        if not isinstance(values, (list, tuple)):
            raise Invalid(f"{type(values).__name__} is not a list")
        return [check(value) for value in values]

    return checked


def _object(checks: Dict[str, Check]) -> Check:
    return lambda value: fields(checks, value)


def _texts_by_name(value: Any) -> Dict[str, str]:
    if not isinstance(value, dict):
        raise Invalid(f"{type(value).__name__} is not an object")
    return {_text(name): _text(text) for name, text in value.items()}


def _counts_by_name(value: Any) -> Dict[str, int]:
    if not isinstance(value, dict):
        raise Invalid(f"{type(value).__name__} is not an object")
    return {_text(name): count(number) for name, number in value.items()}


_TEXTS = _list(_text)


def _names_by_name(value: Any) -> Dict[str, List[str]]:
    if not isinstance(value, dict):
        raise Invalid(f"{type(value).__name__} is not an object")
    return {_text(name): _TEXTS(names) for name, names in value.items()}


_VERDICT = {"node": _text, "clean": truth, "killed": count, "message": _text}
_ATTEMPT = {
    "position": _large,
    "message": _text,
    "exit_code": _or(None, _whole),
    "ran_s": _or(None, _number),
    "lived_s": _or(None, _number),
    "died": truth,
    "gave_up": truth,
}
_RUNNER = {"pid": count, "start": _text, "boot_id": _text, "head": _text}
_REPORT = {"ended": _TEXTS, "left": _TEXTS, "boot_id": _text}
_PROCESS = {"number": count, "label": _text, "node": _text, "file": _file_name}
_STATE: Dict[str, Check] = {
    "format": count,
    "id": _id,
    "name": _text,
    "launcher": _text,
    "command": _TEXTS,
    "submitted_at": _number,
    "stack": _text,
    "state": _state_name,
    "started_at": _or(None, _number),
    "ended_at": _or(None, _number),
    "tags": _texts_by_name,
    "processes": count,
    "ranks": _counts_by_name,
    "gpus": _names_by_name,
    "waits": truth,
    "exit_code": _or(None, _whole),
    "message": _text,
    "attempt": count,
    "restarts": count,
    "attempts": _list(_object(_ATTEMPT)),
    "has_secrets": truth,
    "tail": _TEXTS,
    "nodes": _list(_object(_VERDICT)),
    "runner": _or({}, _object(_RUNNER)),
    "allocation": _or(None, _object({"scheduler": _text, "id": _text})),
}
