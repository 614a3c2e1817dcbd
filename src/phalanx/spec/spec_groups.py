"""The rules of keys of phalanx.yaml that have keys of their own, such as `disk: {size_gib: 200}`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from phalanx.spec import spec_checks as checks
from phalanx.spec.spec_checks import WrongError
from phalanx.spec.spec_limits import MOST_TAGS
from phalanx.spec.spec_rules import TEXT, Kind, Rule, whole
from phalanx.spec.spec_yaml import Value

Group = dict[str, Any]
_KIND = "group of keys"


def group(parts: Mapping[str, Rule], together: Callable[[Group], Group] = lambda given: given) -> Rule:
    """Return the rule of a group of one or more of these keys; its normal form has those that were given.

    `together` checks what depends on several of them, and returns the group.
    """

    def read(value: Value) -> Group:
        return {name: _of_part(parts, name, one, _read) for name, one in _keys_of(value).items()}

    def check(given: Group) -> Group:
        if not given:
            raise WrongError("has no keys", f"write one of {', '.join(parts)}, or remove the line", code="no-value")
        return together({name: _of_part(parts, name, one, _checked) for name, one in given.items()})

    properties = {name: part.schema() for name, part in parts.items()}
    schema = {"type": "object", "properties": properties, "additionalProperties": False, "minProperties": 1}
    allowed = "; ".join(f"`{name}`: {part.allowed}" for name, part in parts.items())
    return Rule(Kind(_KIND, dict, read, dict), check, lambda: schema, allowed)


def texts(name: str, value: str, most: int, reserved: str, allowed: str, as_written: bool = False) -> Rule:
    """Return the rule of a group of 1 to `most` texts, whose names and values match these patterns.

    Names that begin as `reserved` matches are refused. With `as_written`, numbers, yes and no are texts, too.
    """
    scalars = ["string", "number", "boolean"] if as_written else "string"

    def read(given: Value) -> Group:
        return {key: _within(key, text_of, one) for key, one in _keys_of(given).items()}

    def text_of(one: Value) -> str:
        return one.text if as_written and one.text else TEXT.read(one)

    def check(given: Group) -> Group:
        if not 1 <= len(given) <= most:
            raise WrongError(f"must have 1 to {most} entries, has {len(given)}", code="out-of-range")
        if wrong := [refusal for entry in given.items() for refusal in refusals(*entry)]:
            raise WrongError(", and ".join(wrong), allowed, code="bad-entry")
        return dict(given)

    def refusals(key: Any, text: Any) -> Iterator[str]:
        if not _is_text(key, name):
            yield f"'{checks.cut(str(key))}' can't be a name"
        elif re.match(reserved, key):
            yield f"the name {key} is reserved"
        if not _is_text(text, value):
            yield f"'{checks.cut(str(text))}' can't be the value of {checks.cut(str(key))}"

    schema = {
        "type": "object",
        "minProperties": 1,
        "maxProperties": most,
        "propertyNames": {"pattern": whole(name), "not": {"pattern": f"^(?:{reserved})"}},
        "additionalProperties": {"type": scalars, "pattern": whole(value)},
    }
    return Rule(Kind(_KIND, dict, read, dict), check, lambda: schema, allowed)


def _is_text(text: Any, pattern: str) -> bool:
    return isinstance(text, str) and bool(re.fullmatch(pattern, text))


def _keys_of(value: Value) -> dict[str, Value]:
    if value.plain is None:
        raise WrongError("has no value", "write keys below it, or remove the line", code="no-value")
    if not isinstance(value.plain, dict):
        raise WrongError(f"must be a group of keys, is {value.described}", code="wrong-type")
    return value.plain


def _of_part(parts: Mapping[str, Rule], name: str, value: Any, do: Callable[[Rule, Any], Any]) -> Any:
    if name not in parts:
        raise WrongError(f"has no key '{checks.cut(str(name))}'", checks.nearest(str(name), parts), code="unknown-key")
    return _within(name, lambda one: do(parts[name], one), value)


def _within(name: str, do: Callable[[Any], Any], value: Any) -> Any:
    """Return what `do` returns; name the key in its WrongError."""
    try:
        return do(value)
    except WrongError as error:
        raise WrongError(f"{name} {error.what}", error.hint, code=error.code) from None


def _read(part: Rule, value: Value) -> Any:
    return part.kind.read(value)


def _checked(part: Rule, value: Any) -> Any:
    part.kind.require(value)
    return part.check(value)


TAGS = texts(
    r"[A-Za-z0-9 _.:/=+@-]{1,128}",
    r"[A-Za-z0-9 _.:/=+@-]{1,256}",
    MOST_TAGS,
    r"[aA][wW][sS]:|phalanx:|Name$",
    f"1 to {MOST_TAGS} names with texts, of letters, digits, spaces and _ . : / = + @ -; no name is Name or "
    "begins with aws: or phalanx:",
)
