"""AWS's resource schemas, which cfn-lint ships as JSON: checks a resource's properties against them.

cfn-lint itself is never imported, which would take over a second; reading the schemas of one stack takes 10 ms.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

KINDS: dict[str, tuple[type, ...]] = {
    # CloudFormation converts between numbers and text, so one scalar is accepted for another.
    "string": (str, int, float, bool),
    "integer": (int, str),
    "number": (int, float, str),
    "boolean": (bool, str),
    "array": (list,),
    "object": (dict, str),
}


def directory() -> Path:
    """Return the directory of the schemas. Raises FileNotFoundError when cfn-lint is not installed."""
    found = importlib.util.find_spec("cfnlint")
    if found is None or found.origin is None:
        raise FileNotFoundError("cfn-lint's resource schemas")
    return Path(found.origin).parent / "data" / "schemas"


@functools.cache
def known_types() -> Mapping[str, str]:
    """Return all resource types in us-east-1, with the names of their schema files."""
    return json.loads((directory() / "providers" / "us-east-1.json").read_bytes())


@functools.cache
def schema(resource_type: str) -> Mapping[str, Any]:
    """Return the schema of a type in `known_types`."""
    return json.loads((directory() / "resources" / f"{known_types()[resource_type]}.json").read_bytes())


def problems(resource_type: str, properties: Mapping[str, Any]) -> list[str]:
    """List what is wrong with resolved properties, worded like CloudFormation's validator."""
    whole = schema(resource_type)
    return list(_object_problems("#", properties, whole, whole))


def recreation(resource_type: str, name: str) -> str:
    """Return whether a change of a property replaces the resource: Always, Conditionally or Never."""
    whole = schema(resource_type)
    if f"/properties/{name}" in whole.get("createOnlyProperties", []):
        return "Always"
    return "Conditionally" if f"/properties/{name}" in whole.get("conditionalCreateOnlyProperties", []) else "Never"


def replaces(resource_type: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a resource with these properties is replaced when it gets those."""
    differing = {name for name in {*before, *now} if before.get(name) != now.get(name)}
    return any(recreation(resource_type, name) == "Always" for name in differing)


def custom_name(resource_type: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the name that a template gives to a resource before and after a change, or ""."""
    key = f"{resource_type.rpartition(':')[2]}Name"
    return next((str(now[name]) for name in (key, "GroupName") if name in now and now[name] == before.get(name)), "")


def tag_property(resource_type: str) -> str:
    """Return the property that holds a resource's own tags, or ""."""
    return schema(resource_type).get("tagging", {}).get("tagProperty", "").rpartition("/")[2]


def takes_tags(resource_type: str) -> bool:
    """Whether CloudFormation changes the tags of a resource of this type when those of its stack change."""
    rules = schema(resource_type).get("tagging", {})
    return bool(rules.get("taggable") and rules.get("tagUpdatable"))


def _object_problems(
    path: str, value: Mapping[str, Any], rules: Mapping[str, Any], whole: Mapping[str, Any]
) -> Iterator[str]:
    known = rules.get("properties", {})
    if rules.get("additionalProperties") is False and not rules.get("patternProperties"):
        for key in value:
            if key not in known:
                yield f"{path}: extraneous key [{key}] is not permitted"
    for key in rules.get("required", []):
        if key not in value:
            yield f"{path}: required key [{key}] not found"
    for key, item in value.items():
        if key in known:
            yield from _problems(f"{path}/{key}", item, known[key], whole)


def _problems(path: str, value: Any, rules: Mapping[str, Any], whole: Mapping[str, Any]) -> Iterator[str]:
    rules = _followed(rules, whole)
    kinds = rules.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(value, KINDS.get(kind, (object,))) for kind in kinds):
        yield f"{path}: expected type: {kinds[0].title()}, found: {_kind(value)}"
    elif isinstance(value, dict):
        yield from _object_problems(path, value, rules, whole)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _problems(f"{path}/{index}", item, rules.get("items", {}), whole)
    else:
        yield from _scalar_problems(path, value, rules)


def _followed(rules: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in rules:
        found: Any = whole
        for step in rules["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        rules = found
    return rules


def _scalar_problems(path: str, value: Any, rules: Mapping[str, Any]) -> Iterator[str]:
    if "enum" in rules and str(value) not in [str(choice) for choice in rules["enum"]]:
        yield f"{path}: {value} is not a valid enum value"
    number = _number(value)
    if number is not None and "maximum" in rules and number > rules["maximum"]:
        yield f"{path}: {value} is not less or equal to {rules['maximum']}"
    if number is not None and "minimum" in rules and number < rules["minimum"]:
        yield f"{path}: {value} is not greater or equal to {rules['minimum']}"
    if (
        isinstance(value, str)
        and "string" in str(rules.get("type"))
        and len(value) > rules.get("maxLength", len(value))
    ):
        yield f"{path}: expected maxLength: {rules['maxLength']}, actual: {len(value)}"


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _kind(value: Any) -> str:
    return {dict: "JSONObject", list: "JSONArray", bool: "Boolean", int: "Integer"}.get(type(value), "String")
