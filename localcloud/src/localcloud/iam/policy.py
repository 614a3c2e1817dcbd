"""IAM policy evaluation: statements, wildcards, conditions and variables, as AWS documents them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any

Statement = Mapping[str, Any]
Keys = Mapping[str, Sequence[str]]


_WITH_VARIABLES = "2012-10-17"


class Decision(Enum):
    """The result of an evaluation. A call that no statement matches is not allowed."""

    ALLOWED = "allowed"
    NOT_ALLOWED = "no statement allows it"
    DENIED = "a statement denies it"
    OUTSIDE_BOUNDARY = "the permissions boundary does not allow it"
    OUTSIDE_ENDPOINT = "the policy of the VPC endpoint does not allow it"


@dataclass(frozen=True)
class Ask:
    """A request to evaluate: `action` on `resource`. `keys` are the condition keys, with names in lower case."""

    action: str
    resource: str
    keys: Keys = field(default_factory=dict)
    principal_service: str = ""
    principals: tuple[str, ...] = ()
    """The names by which a policy may refer to the account, role or session of the caller."""


@dataclass(frozen=True)
class Rights:
    """The statements of a role's policies, and those of its permissions boundary; None if it has no boundary.

    A boundary allows nothing by itself: it limits what the policies allow.
    """

    own: Sequence[Statement] = ()
    boundary: Sequence[Statement] | None = None

    def decide(self, ask: Ask) -> Decision:
        """Evaluate the policies, and the boundary for what they allow."""
        decision = decide(self.own, ask)
        return Decision.OUTSIDE_BOUNDARY if decision is Decision.ALLOWED and not self.within_boundary(ask) else decision

    def about(self, action: str) -> list[Statement]:
        """Return the statements that name an action, whatever resources and conditions they have."""
        everything = [*self.own, *(self.boundary or ())]
        return [one for one in everything if _element(one, "Action", action, {}, ignore_case=True)]

    def within_boundary(self, ask: Ask) -> bool:
        return self.boundary is None or decide(self.boundary, ask) is Decision.ALLOWED


def decide(statements: Iterable[Statement], ask: Ask) -> Decision:
    """Evaluate the statements: an explicit deny overrides any allow; without a match, the request is not allowed."""
    decision = Decision.NOT_ALLOWED
    for statement in statements:
        if not _matches(statement, ask):
            continue
        if statement.get("Effect") == "Deny":
            return Decision.DENIED
        if statement.get("Effect") == "Allow":
            decision = Decision.ALLOWED
    return decision


def statements_of(document: Mapping[str, Any]) -> list[Statement]:
    """Return the statements of a policy document; a single one needs no list."""
    statements = as_list(document.get("Statement"))
    return list(statements) if document.get("Version") == _WITH_VARIABLES else [_literal(one) for one in statements]


def _literal(value: Any) -> Any:
    """Return a part of a policy of 2008, or without a version, in which `${…}` is a text (docs/aws-behaviour.md 6)."""
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    return value.replace("${", "${$}{") if isinstance(value, str) else value


def names_resources(statement: Statement) -> bool:
    """Whether a statement is about some resources only, and not about all of them."""
    return "NotResource" in statement or "*" not in as_list(statement.get("Resource", "*"))


def as_list(value: Any) -> list[Any]:
    """Return a list: policies allow a single value in place of a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple, set)) else [value]


def _matches(statement: Statement, ask: Ask) -> bool:
    return (
        _principal_matches(statement, ask)
        and _element(statement, "Action", ask.action, ask.keys, ignore_case=True)
        and _element(statement, "Resource", ask.resource, ask.keys, ignore_case=False)
        and _conditions_hold(statement.get("Condition") or {}, ask.keys, statement.get("Effect") == "Deny")
    )


def _principal_matches(statement: Statement, ask: Ask) -> bool:
    """Return whether the statement applies to the caller: identity policies have no Principal, resource policies do."""
    if "Principal" not in statement:
        return True
    principal = statement["Principal"]
    if principal == "*":
        return True
    named = {"*", *ask.principals} & set(as_list(principal.get("AWS")))
    return bool(named) or ask.principal_service in as_list(principal.get("Service"))


def _element(statement: Statement, name: str, value: str, keys: Keys, *, ignore_case: bool) -> bool:
    if f"Not{name}" in statement:
        return not _any_like(statement[f"Not{name}"], value, keys, ignore_case)
    if name not in statement:
        # Only trust policies omit Resource.
        return name == "Resource"
    return _any_like(statement[name], value, keys, ignore_case)


def _any_like(patterns: Any, value: str, keys: Keys, ignore_case: bool) -> bool:
    given = tuple(_with_variables(str(pattern), keys) for pattern in as_list(patterns))
    plain, others = _plain_and_others(given, ignore_case)
    return (value.lower() if ignore_case else value) in plain or any(one.fullmatch(value) for one in others)


@lru_cache(maxsize=1024)
def _plain_and_others(patterns: tuple[str, ...], ignore_case: bool) -> tuple[frozenset[str], list[re.Pattern[str]]]:
    """Return the patterns, each of which matches itself, and expressions for the few that match more."""
    plain = frozenset(one.lower() if ignore_case else one for one in patterns)
    return plain, [_compiled(one, ignore_case) for one in patterns if "*" in one or "?" in one]


def like(pattern: str, value: str, ignore_case: bool = False) -> bool:
    """Match: `*` is any sequence of characters, `?` is one; both include slashes and colons."""
    return bool(_compiled(pattern, ignore_case).fullmatch(value))


@lru_cache(maxsize=1024)
def _compiled(pattern: str, ignore_case: bool) -> re.Pattern[str]:
    parts = ("." if c == "?" else ".*" if c == "*" else re.escape(c) for c in pattern)
    return re.compile("".join(parts), re.DOTALL | (re.IGNORECASE if ignore_case else 0))


_VARIABLE = re.compile(r"\$\{([^}]+)\}")


def _with_variables(pattern: str, keys: Keys) -> str:
    """Replace `${aws:userid}` by the request's value; an unknown variable stays, and so matches nothing."""
    if "${" not in pattern:
        return pattern

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name in ("*", "?", "$"):
            return name
        values = keys.get(name.lower(), ())
        return values[0] if len(values) == 1 else match.group(0)

    return _VARIABLE.sub(value, pattern)


def _conditions_hold(conditions: Mapping[str, Any], keys: Keys, denying: bool) -> bool:
    for operator, wanted in conditions.items():
        for key, values in wanted.items():
            patterns = [_with_variables(_text(value), keys) for value in as_list(values)]
            if not _condition_holds(operator, keys.get(key.lower()), patterns, denying):
                return False
    return True


def _condition_holds(operator: str, actual: Sequence[str] | None, patterns: list[str], denying: bool) -> bool:
    quantifier, _, name = operator.rpartition(":")
    if name == "Null":
        return (actual is None) == (patterns == ["true"])
    if_exists = name.endswith("IfExists")
    name = name.removesuffix("IfExists")
    if name not in _TESTS:
        # An operator that this evaluator does not know must never allow anything.
        return denying
    negated, test = _TESTS[name]
    if not actual:
        return if_exists or quantifier == "ForAllValues" or (negated and quantifier != "ForAnyValue")
    verdicts = [any(test(pattern, value) for pattern in patterns) != negated for value in actual]
    return any(verdicts) if quantifier == "ForAnyValue" else all(verdicts)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(compare: Callable[[float, float], bool]) -> Callable[[str, str], bool]:
    def test(pattern: str, value: str) -> bool:
        try:
            return compare(float(value), float(pattern))
        except ValueError:
            return False

    return test


def _in_network(pattern: str, value: str) -> bool:
    try:
        return ipaddress.ip_address(value) in ipaddress.ip_network(pattern, strict=False)
    except ValueError:
        return False


def _same(pattern: str, value: str) -> bool:
    return pattern == value


def _same_ignoring_case(pattern: str, value: str) -> bool:
    return pattern.lower() == value.lower()


# Operator → (negated, test of one pattern against one value).
_TESTS: dict[str, tuple[bool, Callable[[str, str], bool]]] = {
    "StringEquals": (False, _same),
    "StringNotEquals": (True, _same),
    "StringEqualsIgnoreCase": (False, _same_ignoring_case),
    "StringNotEqualsIgnoreCase": (True, _same_ignoring_case),
    "StringLike": (False, like),
    "StringNotLike": (True, like),
    "ArnEquals": (False, like),
    "ArnNotEquals": (True, like),
    "ArnLike": (False, like),
    "ArnNotLike": (True, like),
    "Bool": (False, _same_ignoring_case),
    "IpAddress": (False, _in_network),
    "NotIpAddress": (True, _in_network),
    "NumericEquals": (False, _number(lambda value, bound: value == bound)),
    "NumericNotEquals": (True, _number(lambda value, bound: value == bound)),
    "NumericLessThan": (False, _number(lambda value, bound: value < bound)),
    "NumericLessThanEquals": (False, _number(lambda value, bound: value <= bound)),
    "NumericGreaterThan": (False, _number(lambda value, bound: value > bound)),
    "NumericGreaterThanEquals": (False, _number(lambda value, bound: value >= bound)),
}
