"""Component documents: which scripts each phase runs (docs/aws-behaviour.md 9.2). Only ExecuteBash is supported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

PHASES = ("build", "validate", "test")
_TIMEOUT_S = 7200


class InvalidDocument(Exception):  # noqa: N818 - an answer of the API, not a bug
    """The document is no component of schema 1.0, or needs what the local cloud lacks; the message says what."""


@dataclass(frozen=True)
class Step:
    """A step of a component's phase: a script for bash."""

    phase: str
    name: str
    script: str
    timeout_s: float


def steps(data: str) -> list[Step]:
    """Return all steps of a document. Raises InvalidDocument."""
    try:
        document = yaml.safe_load(data)
    except yaml.YAMLError as error:
        raise InvalidDocument(f"The component document is not valid YAML: {error}") from None
    if not isinstance(document, dict) or str(document.get("schemaVersion")) != "1.0":
        raise InvalidDocument("The component document has no schemaVersion 1.0.")
    found = [step for phase in document.get("phases") or [] for step in _of_phase(phase)]
    if not found:
        raise InvalidDocument("The component document has no phase with steps.")
    return found


def _of_phase(phase: dict[str, Any]) -> Iterator[Step]:
    if phase.get("name") not in PHASES:
        raise InvalidDocument(f"The component document has an unknown phase: {phase.get('name')}.")
    for step in phase.get("steps") or []:
        if step.get("action") != "ExecuteBash":
            raise InvalidDocument(f"The local cloud's Image Builder does not support {step.get('action')}.")
        script = "\n".join(step["inputs"]["commands"])
        yield Step(phase["name"], step["name"], script, float(step.get("timeoutSeconds", _TIMEOUT_S)))
