"""What AWS's own models require of a request: members that must be there, values that are allowed, bounds, patterns.

SDKs check some of it before they send a request; AWS checks all of it, and moto next to nothing.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

# A launch template may name a type that does not exist.
_CHECKED_AT_LAUNCH = ("InstanceType",)


class Problem(NamedTuple):
    """What is wrong with a member: `value` is None where it is missing, `must` completes "Member must …"."""

    path: str
    value: Any
    must: str

    @property
    def is_missing(self) -> bool:
        return self.value is None

    def text(self) -> str:
        """Say it as AWS's services do."""
        shown = "null" if self.is_missing else f"'{self.value}'"
        return f"Value {shown} at '{self.path}' failed to satisfy constraint: Member must {self.must}"


def problems(shape: Any, value: Any, path: str = "") -> Iterator[Problem]:
    """Yield what is wrong with a value of botocore's shape, in the order of the model."""
    inside = _INSIDE.get(shape.type_name)
    if inside and isinstance(value, (dict, list)):
        yield from inside(shape, value, path)
    elif isinstance(value, str):
        yield from _wrong_text(shape, value, path)
    if shape.type_name in ("list", "string", "map") and isinstance(value, (str, list, dict)):
        yield from _wrong_length(shape.metadata, value, path)
    if shape.type_name in ("integer", "long") and isinstance(value, int):
        yield from _wrong_number(shape.metadata, value, path)


def _in_structure(shape: Any, value: Mapping[str, Any], path: str) -> Iterator[Problem]:
    for name in shape.required_members:
        if value.get(name) is None:
            yield Problem(_below(path, name), None, "not be null")
    for name, member in shape.members.items():
        if value.get(name) is not None:
            yield from problems(member, value[name], _below(path, name))


def _in_list(shape: Any, value: list[Any], path: str) -> Iterator[Problem]:
    for number, item in enumerate(value, 1):
        yield from problems(shape.member, item, f"{path}.{number}.member")


def _in_map(shape: Any, value: Mapping[str, Any], path: str) -> Iterator[Problem]:
    for key, item in value.items():
        yield from problems(shape.value, item, f"{path}.{key}.member")


_INSIDE: dict[str, Any] = {"structure": _in_structure, "list": _in_list, "map": _in_map}


def _below(path: str, name: str) -> str:
    shown = name[0].lower() + name[1:]
    return f"{path}.{shown}" if path else shown


def _wrong_text(shape: Any, value: str, path: str) -> Iterator[Problem]:
    rules = shape.metadata
    if "enum" in rules and value not in rules["enum"] and shape.name not in _CHECKED_AT_LAUNCH:
        yield Problem(path, value, f"satisfy enum value set: [{', '.join(rules['enum'])}]")
    pattern = _compiled(rules.get("pattern", ""))
    if pattern and not pattern.search(value):
        yield Problem(path, value, f"satisfy regular expression pattern: {rules['pattern']}")


def _wrong_length(rules: Mapping[str, Any], value: Any, path: str) -> Iterator[Problem]:
    if len(value) < rules.get("min", 0):
        yield Problem(path, value, f"have length greater than or equal to {rules['min']}")
    if len(value) > rules.get("max", len(value)):
        yield Problem(path, value, f"have length less than or equal to {rules['max']}")


def _wrong_number(rules: Mapping[str, Any], value: int, path: str) -> Iterator[Problem]:
    if value < rules.get("min", value):
        yield Problem(path, value, f"have value greater than or equal to {rules['min']}")
    if value > rules.get("max", value):
        yield Problem(path, value, f"have value less than or equal to {rules['max']}")


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """Compile a pattern for a whole value; None for one in Java's notation that Python lacks."""
    try:
        return re.compile(rf"\A(?:{pattern})\Z", re.DOTALL) if pattern else None
    except re.error:
        return None
