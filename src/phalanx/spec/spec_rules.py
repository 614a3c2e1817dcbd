"""The rules for values of phalanx.yaml: one rule serves the reader, the check, JSON Schema and the reference page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.spec import spec_checks as checks
from phalanx.spec.spec_checks import WrongError
from phalanx.spec.spec_yaml import Value


@dataclass(frozen=True)
class Kind:
    """A kind of value: `read` converts it from the file or raises WrongError; `written` returns it as in the file."""

    name: str
    type: type | tuple[type, ...]
    read: Callable[[Value], Any]
    written: Callable[[Any], Any]

    def require(self, value: Any) -> None:
        """Raise WrongError unless a Python program gave a value of this kind."""
        if not isinstance(value, self.type) or isinstance(value, bool):
            wanted = self.type if isinstance(self.type, type) else self.type[0]
            raise WrongError(f"must be {wanted.__name__}, is {value!r:.60}", code="wrong-type")


@dataclass(frozen=True)
class Rule:
    """`check` returns the value, in its normal form, or raises WrongError.

    `schema` expresses as much of the check as JSON Schema can, and accepts everything that `check` accepts. `allowed`
    describes the values in words.
    """

    kind: Kind
    check: Callable[[Any], Any]
    schema: Callable[[], dict[str, Any]]
    allowed: str


def text(check: Callable[[str], str], schema: Callable[[], dict[str, Any]], allowed: str) -> Rule:
    """Return the rule of a text that JSON Schema can check only in part, or not at all."""
    return Rule(TEXT, check, lambda: {"type": "string", **schema()}, allowed)


def matching(pattern: str, refusal: str, hint: str, allowed: str = "") -> Rule:
    """Return the rule of a text of this pattern; `refusal` shows it for {}, and `hint` is the default of `allowed`."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise WrongError(refusal.format(checks.cut(value)), hint, code="bad-value")
        return value

    return text(check, lambda: {"pattern": whole(pattern)}, allowed or hint)


def one_of(words: Callable[[], Iterable[str]], refusal: str, allowed: str = "") -> Rule:
    """Return the rule of a text that is one of these."""
    return text(_choice(words, refusal), lambda: {"enum": list(words())}, allowed or _listed(words()))


def word(words: tuple[str, ...]) -> Rule:
    """Return the rule of one of these words in lower or upper case; YAML 1.1 reads some of them as booleans."""
    pattern = "|".join("".join(f"[{letter.upper()}{letter}]" for letter in one) for one in words)
    check = _choice(lambda: words, f"must be {_listed(words)}, is '{{}}'")
    either = [{"enum": list(words)}, {"pattern": whole(pattern)}]
    return Rule(_WORD, check, lambda: {"type": "string", "anyOf": either}, _listed(words))


def number(least: int, most: int) -> Rule:
    """Return the rule of a whole number from `least` to `most`."""

    def check(value: int) -> int:
        if value < least:
            raise WrongError(f"must be at least {least}, is {value}", code="out-of-range")
        if value > most:
            raise WrongError(f"must be at most {most}, is {value}", code="out-of-range")
        return value

    return Rule(
        _NUMBER, check, lambda: {"type": "integer", "minimum": least, "maximum": most}, f"from {least} to {most}"
    )


def time_s(most_s: int, reason: str) -> Rule:
    """Return the rule of a time up to `most_s` seconds, written with its unit. `reason` explains the limit."""
    allowed = f"from 1s to {_time_text(most_s)}"

    def check(value: int) -> int:
        if not 1 <= value <= most_s:
            raise WrongError(f"must be {allowed}, is {value}s", reason, code="out-of-range")
        return value

    return Rule(_TIME, check, lambda: {"type": "string", "pattern": whole(f"(?=.){checks.DURATION}")}, allowed)


def time_or_none_s(most_s: int, reason: str) -> Rule:
    """Return the rule of a time as `time_s` describes it, or `none`, which is 0."""
    timed = time_s(most_s, reason)
    either = [{"pattern": whole(f"(?=.){checks.DURATION}")}, {"pattern": whole("[Nn][Oo][Nn][Ee]|[Nn][Oo]")}]
    return Rule(
        _TIME_OR_NONE,
        lambda value: value and timed.check(value),
        lambda: {"type": "string", "anyOf": either},
        f"{timed.allowed}, or none",
    )


def words(pattern: str, most: int, allowed: str) -> Rule:
    """Return the rule of a list of 1 to `most` different words of this pattern; its normal form is a tuple."""
    items = {"type": "string", "pattern": whole(pattern)}
    schema = {"type": "array", "items": items, "minItems": 1, "maxItems": most, "uniqueItems": True}

    def check(value: Sequence[Any]) -> tuple[str, ...]:
        if not 1 <= len(value) <= most:
            raise WrongError(f"must have 1 to {most} entries, has {len(value)}", code="out-of-range")
        for number, item in enumerate(value):
            if not isinstance(item, str) or not re.fullmatch(pattern, item):
                raise WrongError(f"'{checks.cut(str(item))}' is not {allowed}", code="bad-entry")
            if item in value[:number]:
                raise WrongError(f"has {item} twice", "remove one", code="written-twice")
        return tuple(value)

    return Rule(_LIST, check, lambda: schema, f"1 to {most} entries, each {allowed}")


def one_or_more(one: Rule, most: int) -> Rule:
    """Return the rule of a text, or of a list of up to `most` different ones, whose normal form is a tuple."""

    def read(value: Value) -> Any:
        return _read_list(value) if isinstance(value.plain, list) else TEXT.read(value)

    def check(value: Any) -> Any:
        if isinstance(value, str):
            return one.check(value)
        if not 1 <= len(value) <= most or len(set(map(str, value))) < len(value):
            raise WrongError(f"must have 1 to {most} different entries", code="out-of-range")
        if wrong := [item for item in value if not isinstance(item, str)]:
            raise WrongError(f"must be a list of texts, has {wrong[0]!r:.40}", code="wrong-type")
        return tuple(map(one.check, value))

    def schema() -> dict[str, Any]:
        entries = {"type": "array", "items": one.schema(), "minItems": 1, "maxItems": most, "uniqueItems": True}
        return {"anyOf": [one.schema(), entries]}

    return Rule(
        Kind("text, or list", (str, list, tuple), read, str), check, schema, f"{one.allowed}; or a list of them"
    )


def whole(pattern: str) -> str:
    """Return a pattern that matches the whole text, because JSON Schema searches."""
    return f"^(?:{pattern})$"


def _choice(words: Callable[[], Iterable[str]], refusal: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if value not in words():
            raise WrongError(refusal.format(checks.cut(value)), checks.nearest(value, words()), code="unknown-choice")
        return value

    return check


def _listed(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _read_text(value: Value) -> str:
    if not isinstance(_present(value), str):
        raise WrongError(
            f"must be text, is {value.described}",
            "put it in quotes if that is what you mean" if value.text else "",
            code="wrong-type",
        )
    return value.plain


def _read_word(value: Value) -> str:
    _present(value)
    return value.text.lower()


def _read_number(value: Value) -> int:
    if not isinstance(_present(value), int) or isinstance(value.plain, bool):
        raise WrongError(
            f"must be a whole number, is {value.described}",
            "write digits only, such as 4, without quotes",
            code="wrong-type",
        )
    return value.plain


def _read_time_s(value: Value) -> int:
    if isinstance(_present(value), bool) or not value.text:
        raise WrongError(
            f"must be a time with its unit, is {value.described}", "such as 90s, 10m or 1h30m", code="not-a-time"
        )
    return checks.duration_s(value.text)


def _read_time_or_none_s(value: Value) -> int:
    if _present(value) is not None and value.text.lower() in ("none", "no"):
        return 0
    return _read_time_s(value)


def _read_list(value: Value) -> list[Any]:
    if not isinstance(_present(value), list):
        raise WrongError(
            f"must be a list, is {value.described}", "write one such as [first, second]", code="wrong-type"
        )
    return value.plain


def _present(value: Value) -> Any:
    if value.plain is None:
        raise WrongError("has no value", "write one, or remove the line", code="no-value")
    return value.plain


def _time_text(seconds: int) -> str:
    """Return the time in the largest unit that divides it."""
    number, unit = next((seconds // size, unit) for unit, size in checks.UNIT_SECONDS.items() if seconds % size == 0)
    return f"{number}{unit}"


TEXT = Kind("text", str, _read_text, str)
_WORD = Kind("word", str, _read_word, str)
_NUMBER = Kind("whole number", int, _read_number, int)
_LIST = Kind("list", (list, tuple), _read_list, list)
_TIME = Kind("time", int, _read_time_s, _time_text)
_TIME_OR_NONE = Kind("time", int, _read_time_or_none_s, lambda value: _time_text(value) if value else "none")
