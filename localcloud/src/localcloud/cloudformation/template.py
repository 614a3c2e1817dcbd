"""Parses template text (JSON, or YAML with short forms) into a `Template` and checks its structure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from localcloud.cloudformation.errors import Refused

SECTIONS = {
    "AWSTemplateFormatVersion",
    "Conditions",
    "Description",
    "Hooks",
    "Mappings",
    "Metadata",
    "Outputs",
    "Parameters",
    "Resources",
    "Rules",
    "Transform",
}
RESOURCE_KEYS = {
    "Condition",
    "CreationPolicy",
    "DeletionPolicy",
    "DependsOn",
    "Description",
    "Metadata",
    "Properties",
    "Type",
    "UpdatePolicy",
    "UpdateReplacePolicy",
}
DELETION_POLICIES = ("Delete", "Retain", "RetainExceptOnCreate", "Snapshot")


@dataclass(frozen=True)
class Declared:
    """One entry of the Resources section, as written."""

    logical_id: str
    type: str
    properties: Mapping[str, Any] = field(default_factory=dict)
    depends_on: tuple[str, ...] = ()
    condition: str | None = None
    creation_policy: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    deletion_policy: str = "Delete"
    update_replace_policy: str = "Delete"
    update_policy: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Template:
    """A template's sections; `body` is the text that GetTemplate returns."""

    body: str
    description: str
    parameters: Mapping[str, Mapping[str, Any]]
    mappings: Mapping[str, Any]
    conditions: Mapping[str, Any]
    resources: Mapping[str, Declared]
    metadata: Mapping[str, Any]
    outputs: Mapping[str, Mapping[str, Any]]


class _Loader(yaml.SafeLoader):
    """YAML with CloudFormation's short forms (`!Ref`, `!GetAtt a.b`, …); timestamps stay text."""


def _short_form(loader: Any, suffix: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        value: Any = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)
    if suffix == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}


_Loader.add_multi_constructor("!", _short_form)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_yaml_str)


_VERSION, _TRANSFORM = "2010-09-09", "Fn::Transform"
_MOST_DESCRIPTION_BYTES = 1024


def parse(body: str) -> Template:
    """Parse a template and check its structure. Raises Refused with CloudFormation's message."""
    document = _read(body)
    if not isinstance(document, dict):
        raise Refused("Template format error: unsupported structure.")
    resources = document.get("Resources")
    among_them = {_TRANSFORM}.intersection(resources if isinstance(resources, dict) else ())
    if unserved := sorted(({"Transform", "Rules", "Hooks", _TRANSFORM} & document.keys()) | among_them):
        raise Refused(f"Template format error: the local cloud does not serve {', '.join(unserved)}")
    unknown = sorted(str(key) for key in document if key not in SECTIONS)
    if unknown:
        raise Refused(f"Invalid template property or properties [{', '.join(unknown)}]")
    if str(document.get("AWSTemplateFormatVersion", _VERSION)) != _VERSION:
        raise Refused("Template format error: unsupported value for AWSTemplateFormatVersion.")
    if len(str(document.get("Description", "")).encode()) > _MOST_DESCRIPTION_BYTES:
        raise Refused(f"Template format error: 'Description' length is greater than {_MOST_DESCRIPTION_BYTES}.")
    return Template(
        body=body,
        description=str(document.get("Description", "")),
        parameters=_section(document, "Parameters"),
        mappings=_section(document, "Mappings"),
        conditions=_section(document, "Conditions"),
        resources=_resources(_section(document, "Resources")),
        metadata=document.get("Metadata") or {},
        outputs=_section(document, "Outputs"),
    )


def _read(body: str) -> Any:
    if body.lstrip().startswith("{"):
        try:
            return json.loads(body)
        except ValueError as error:
            where = f"(line {getattr(error, 'lineno', 1)}, column {getattr(error, 'colno', 1)})"
            raise Refused(f"Template format error: JSON not well-formed. {where}") from error
    try:
        return yaml.load(body, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"(line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise Refused(f"Template format error: YAML not well-formed. {where}") from error


def _section(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = document.get(name, {})
    if not isinstance(section, dict):
        raise Refused(f"Template format error: {name} must be an object.")
    for key in section:
        if name in ("Resources", "Parameters", "Outputs") and not (
            isinstance(key, str) and key.isascii() and key.isalnum()
        ):
            raise Refused(f"Template format error: {name[:-1]} name {key} is non alphanumeric.")
        if name != "Conditions" and not isinstance(section[key], dict):
            raise Refused(f"Template format error: [/{name}/{key}] must be an object.")
    return section


def _resources(section: Mapping[str, Any]) -> Mapping[str, Declared]:
    if not section:
        raise Refused("Template format error: At least one Resources member must be defined.")
    return {name: _declared(name, entry) for name, entry in section.items()}


def _declared(name: str, entry: Mapping[str, Any]) -> Declared:
    unknown = sorted(set(entry) - RESOURCE_KEYS)
    if unknown:
        raise Refused(f"Invalid template resource property '{unknown[0]}'")
    if not isinstance(entry.get("Type"), str):
        raise Refused(f"Template format error: [/Resources/{name}] Every Resources object must contain a Type member.")
    depends = entry.get("DependsOn", [])
    depends = [depends] if isinstance(depends, str) else depends
    if not isinstance(depends, list) or not all(isinstance(item, str) for item in depends):
        raise Refused(f"Template format error: [/Resources/{name}/DependsOn] must be a string or a list of strings.")
    return Declared(
        logical_id=name,
        type=entry["Type"],
        properties=_object(name, entry, "Properties"),
        depends_on=tuple(depends),
        condition=entry.get("Condition"),
        creation_policy=_object(name, entry, "CreationPolicy"),
        metadata=_object(name, entry, "Metadata"),
        deletion_policy=_policy(name, entry, "DeletionPolicy"),
        update_replace_policy=_policy(name, entry, "UpdateReplacePolicy"),
        update_policy=_object(name, entry, "UpdatePolicy"),
    )


def _object(name: str, entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = entry.get(key) or {}
    if not isinstance(value, dict):
        raise Refused(f"Template format error: [/Resources/{name}/{key}] must be an object.")
    return value


def _policy(name: str, entry: Mapping[str, Any], key: str) -> str:
    policy = entry.get(key, "Delete")
    if policy not in DELETION_POLICIES:
        raise Refused(f"Template format error: Unrecognized {key} {policy} for resource {name}")
    return policy
