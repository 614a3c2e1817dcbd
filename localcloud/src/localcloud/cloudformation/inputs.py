"""Stack parameters: types, defaults and constraints, as CreateStack checks them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from localcloud.api import parameters
from localcloud.cloudformation.errors import Refused
from localcloud.cloudformation.template import Template

SSM_VALUE = re.compile(r"AWS::SSM::Parameter::Value<(.+)>")
LIST = re.compile(r"(?:List<.+>|CommaDelimitedList)")
AWS_TYPE = re.compile(r"(?:List<)?AWS::(?:EC2|Route53|SSM)::[A-Za-z0-9:]+>?")
MAX_VALUE_BYTES = 4096  # docs/aws-behaviour.md 1.28
MASK = "****"


@dataclass(frozen=True)
class Input:
    """One parameter of a stack: the given text, the value of `Ref`, and what DescribeStacks shows."""

    key: str
    given: str
    value: str | list[str]
    no_echo: bool
    resolved: str | None

    def described(self) -> dict[str, str]:
        """Describe it as in DescribeStacks' Parameters."""
        shown = {"ParameterKey": self.key, "ParameterValue": MASK if self.no_echo else self.given}
        return shown | ({"ResolvedValue": self.resolved} if self.resolved is not None else {})


def read_inputs(template: Template, given: Mapping[str, str], ssm: Callable[[str], str]) -> dict[str, Input]:
    """Return all parameters of a template with their values. Raises Refused with CloudFormation's message.

    `ssm(name)` returns the value of a Systems Manager parameter, and raises KeyError when there is none.
    """
    unknown = sorted(set(given) - set(template.parameters))
    if unknown:
        raise Refused(f"Parameters: [{', '.join(unknown)}] do not exist in the template")
    declared = template.parameters
    missing = [key for key in declared if key not in given and "Default" not in declared[key]]
    if missing:
        raise Refused(f"Parameters: [{', '.join(missing)}] must have values")
    texts = {key: given[key] if key in given else _plain(declared[key]["Default"]) for key in declared}
    return {key: _read(key, declared[key], texts[key], ssm) for key in declared}


def _plain(default: Any) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def _read(key: str, rules: Mapping[str, Any], text: str, ssm: Callable[[str], str]) -> Input:
    kind = rules.get("Type", "")
    indirect = SSM_VALUE.fullmatch(kind)
    _check_type(key, indirect[1] if indirect else kind)
    _check(key, rules, text, kind)
    resolved = _lookup(text, ssm) if indirect else None
    value = text if resolved is None else resolved
    is_list = bool(LIST.fullmatch(indirect[1] if indirect else kind))
    parts = [part.strip() for part in value.split(",")] if is_list else value
    return Input(key, text, parts, str(rules.get("NoEcho", "")).lower() == "true", resolved)


def _check_type(key: str, kind: str) -> None:
    if kind not in (
        "String",
        "Number",
        "CommaDelimitedList",
        "List<Number>",
        "List<String>",
    ) and not AWS_TYPE.fullmatch(kind):
        raise Refused(f"Template format error: Unrecognized parameter type: {kind or 'null'} of parameter {key}")


def _lookup(name: str, ssm: Callable[[str], str]) -> str:
    try:
        return ssm(name)
    except KeyError:
        text = f"Unable to fetch parameters [{name}] from parameter store for this account."
        raise Refused(parameters.not_served(name) or text) from None


def _check(key: str, rules: Mapping[str, Any], text: str, kind: str) -> None:
    for broken in (_too_long, _not_a_number, _not_allowed, _no_match, _length, _range):
        problem = broken(key, rules, text, kind)
        if problem:
            described = rules.get("ConstraintDescription")
            raise Refused(f"Parameter {key} failed to satisfy constraint: {described}" if described else problem)


def _too_long(key: str, rules: Mapping[str, Any], text: str, kind: str) -> str | None:  # noqa: ARG001
    return (
        f"Parameter '{key}' must not exceed {MAX_VALUE_BYTES} bytes" if len(text.encode()) > MAX_VALUE_BYTES else None
    )


def _not_a_number(key: str, rules: Mapping[str, Any], text: str, kind: str) -> str | None:  # noqa: ARG001
    if kind in ("Number", "List<Number>") and any(_number(part) is None for part in text.split(",")):
        return f"Parameter '{key}' must be a number."
    return None


def _not_allowed(key: str, rules: Mapping[str, Any], text: str, kind: str) -> str | None:
    allowed = rules.get("AllowedValues")
    parts = text.split(",") if LIST.fullmatch(kind) else [text]
    if allowed is not None and any(part.strip() not in [_plain(value) for value in allowed] for part in parts):
        return f"Parameter '{key}' must be one of AllowedValues"
    return None


def _no_match(key: str, rules: Mapping[str, Any], text: str, kind: str) -> str | None:  # noqa: ARG001
    pattern = rules.get("AllowedPattern")
    if pattern is not None and not re.fullmatch(pattern, text):
        return f"Parameter '{key}' must match pattern {pattern}"
    return None


def _length(key: str, rules: Mapping[str, Any], text: str, kind: str) -> str | None:  # noqa: ARG001
    if "MinLength" in rules and len(text) < int(rules["MinLength"]):
        return f"Parameter '{key}' must contain at least {rules['MinLength']} characters"
    if "MaxLength" in rules and len(text) > int(rules["MaxLength"]):
        return f"Parameter '{key}' must contain at most {rules['MaxLength']} characters"
    return None


def _range(key: str, rules: Mapping[str, Any], text: str, kind: str) -> str | None:  # noqa: ARG001
    number = _number(text)
    if number is not None and "MinValue" in rules and number < float(rules["MinValue"]):
        return f"Parameter '{key}' must be a number not less than {rules['MinValue']}"
    if number is not None and "MaxValue" in rules and number > float(rules["MaxValue"]):
        return f"Parameter '{key}' must be a number not greater than {rules['MaxValue']}"
    return None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
