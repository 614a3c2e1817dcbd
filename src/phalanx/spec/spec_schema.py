"""The JSON Schema of phalanx.yaml (draft 2020-12), for editors and other tools, generated from the keys."""

from __future__ import annotations

from typing import Any

from phalanx.spec.cloud_names import CLOUDS, is_local
from phalanx.spec.makers import EMR_CLOUDS
from phalanx.spec.spec import KEYS, Key

# A URN and no URL, because the schema is not published: the phalanx that checks the file prints it.
_ID = "urn:phalanx:phalanx.yaml"
_ON_AWS = {"properties": {"cloud": {"enum": [cloud for cloud in CLOUDS if not is_local(cloud)]}}, "required": ["cloud"]}
_WITH_EMR = {"properties": {"cloud": {"enum": [*EMR_CLOUDS]}}, "required": ["cloud"]}
_ACCESS = {"properties": {"access": {"pattern": "^[Pp][Rr][Ii][Vv][Aa][Tt][Ee]$"}}, "required": ["access"]}
_PRIVATE = {"properties": {"network": _ACCESS}, "required": ["network"]}


def json_schema() -> dict[str, Any]:
    """Return the schema. It accepts everything that `load` accepts, and refuses what JSON Schema can express."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": _ID,
        "title": "phalanx.yaml",
        "description": "A cluster for distributed deep learning.",
        "type": "object",
        "properties": {name: _property(key) for name, key in KEYS.items()},
        "required": [name for name, key in KEYS.items() if key.required],
        "additionalProperties": False,
        "if": {"allOf": [_ON_AWS, {"not": _PRIVATE}]},
        "then": {"required": ["ssh_from"]},
        "allOf": [
            {"if": _WITH_EMR, "then": {"required": ["emr"]}},
            {"if": _PRIVATE, "then": {"not": {"required": ["ssh_from"]}}},
        ],
    }


def _property(key: Key) -> dict[str, Any]:
    description = f"{key.help} Default: {key.unset}." if key.unset else key.help
    default = {"default": key.written_default} if key.written_default else {}
    return {"description": description, **key.rule.schema(), **default, "examples": [key.example]}
