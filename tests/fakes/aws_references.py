"""AWS's schemas of resource types and IAM's actions, from cfn-lint's files, without the second of its import."""

from __future__ import annotations

import functools
import importlib.util
import json
from pathlib import Path
from typing import Any


def _read(name: str) -> dict[str, Any]:
    found = importlib.util.find_spec("cfnlint")
    assert found is not None and found.origin is not None
    return json.loads((Path(found.origin).parent / "data" / name).read_bytes())


@functools.cache
def authorization() -> dict[str, Any]:
    """Return AWS's service authorization reference: service → its actions and resources."""
    return _read("AdditionalSpecs/Policies.json")


@functools.cache
def _digests() -> dict[str, str]:
    return _read("schemas/providers/us-east-1.json")


@functools.cache
def schema(kind: str) -> dict[str, Any]:
    """Return the schema of a resource type in us-east-1."""
    return _read(f"schemas/resources/{_digests()[kind]}.json")
