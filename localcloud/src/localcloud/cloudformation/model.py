"""CloudFormation's model of a stack: resources, events, statuses."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from localcloud.cloudformation.inputs import Input
from localcloud.cloudformation.template import Declared, Template

STACK_TYPE = "AWS::CloudFormation::Stack"

STACKS: dict[str, str] = {}
"""The stack of each change set, by the change set's ARN: what IAM judges calls about change sets on."""


@dataclass(frozen=True)
class Event:
    """One event in a stack's history."""

    event_id: str
    logical_id: str
    physical_id: str
    type: str
    status: str
    reason: str
    timestamp: datetime
    token: str | None


@dataclass
class Resource:
    """One resource of a stack; `status` is "" until its creation starts."""

    declared: Declared
    properties: dict[str, Any] = field(default_factory=dict)
    physical_id: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    status: str = ""
    reason: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    changed_at: datetime | None = None

    @property
    def exists(self) -> bool:
        """Whether there may be something to delete."""
        return bool(self.physical_id) and self.status not in ("DELETE_COMPLETE", "DELETE_SKIPPED")


@dataclass
class Stack:
    """One stack, from CreateStack until long after its deletion.

    `on_failure` is ROLLBACK, DELETE or DO_NOTHING; `timeout_s` covers the whole creation. `role` is the ARN of the role
    with whose rights operations act, "" for those of their caller.
    """

    stack_id: str
    name: str
    region: str
    template: Template
    inputs: dict[str, Input]
    created_at: datetime
    tags: dict[str, str] = field(default_factory=dict)
    capabilities: list[str] = field(default_factory=list)
    on_failure: str = "ROLLBACK"
    timeout_s: float | None = None
    protected: bool = False
    token: str | None = None
    role: str = ""
    resources: dict[str, Resource] = field(default_factory=dict)
    dependencies: dict[str, set[str]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    outputs: list[dict[str, str]] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    validations: list[Any] = field(default_factory=list)
    """What stopped the creation before it began (validations.Validation)."""
    operation_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    status: str = ""
    reason: str = ""
    updated_at: datetime | None = None
    deleted_at: datetime | None = None

    @property
    def gone(self) -> bool:
        """Whether the name is free again."""
        return self.status == "DELETE_COMPLETE"

    def mark(self, status: str, now: datetime, reason: str = "") -> None:
        """Record the event, then set the stack's status: whoever sees the status finds its event."""
        if status == "DELETE_COMPLETE":
            self.deleted_at = now
        self._record(self.name, self.stack_id, STACK_TYPE, status, reason, now)
        self.status, self.reason = status, reason

    def mark_resource(self, resource: Resource, status: str, now: datetime, reason: str = "") -> None:
        """Set a resource's status and record the event."""
        resource.status, resource.reason, resource.changed_at = status, reason, now
        declared = resource.declared
        self._record(declared.logical_id, resource.physical_id, declared.type, status, reason, now)

    def _record(self, logical: str, physical: str, kind: str, status: str, reason: str, now: datetime) -> None:
        prefix = "" if kind == STACK_TYPE else f"{logical}-{status}-"
        self.events.append(Event(f"{prefix}{uuid.uuid4()}", logical, physical, kind, status, reason, now, self.token))
