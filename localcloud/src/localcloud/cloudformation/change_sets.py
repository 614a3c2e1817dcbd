"""Change sets: what would happen to a stack, and the request to do it.

`aws cloudformation deploy` works with them. A set without a change ends as FAILED, with AWS's own reason.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from localcloud.cloudformation.errors import Refused
from localcloud.cloudformation.model import STACKS, Stack
from localcloud.cloudformation.revisions import Change, Detail, Revision
from localcloud.cloudformation.validations import Validation

IN_REVIEW = "REVIEW_IN_PROGRESS"
NO_CHANGES = "The submitted information didn't contain changes. Submit different information to create a change set."


@dataclass
class ChangeSet:
    """One change set. `failure` is the reason why it can't be executed, "" if it can.

    Without a `revision` it creates its stack. `is_absent` and `is_pending` tell what the API shows of it so far.
    """

    arn: str
    name: str
    stack: Stack
    made_at: datetime
    failure: str = ""
    changes: tuple[Change, ...] = ()
    revision: Revision | None = None
    execution: str = "AVAILABLE"
    validations: tuple[Validation, ...] = ()
    is_absent: Callable[[], bool] = lambda: False
    is_pending: Callable[[], bool] = lambda: False
    operation_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def status(self) -> str:
        if self.is_pending():
            return "CREATE_IN_PROGRESS"
        return "FAILED" if self.failure else "CREATE_COMPLETE"


class ChangeSets:
    """The change sets of one local cloud."""

    def __init__(self) -> None:
        self._all: dict[str, ChangeSet] = {}

    def add(
        self,
        name: str,
        stack: Stack,
        now: datetime,
        failure: str,
        changes: tuple[Change, ...],
        revision: Revision | None = None,
    ) -> ChangeSet:
        """Record a change set. Raises Refused if the stack has one with this name."""
        if any(one.name == name for one in self.of(stack)):
            raise Refused(f"ChangeSet {name} already exists", "AlreadyExistsException")
        arn = f"{stack.stack_id.partition(':stack/')[0]}:changeSet/{name}/{uuid.uuid4()}"
        STACKS[arn] = stack.stack_id
        execution = "UNAVAILABLE" if failure else "AVAILABLE"
        made = ChangeSet(arn, name, stack, now, failure, changes, revision, execution)
        self._all[arn] = made
        return made

    def of(self, stack: Stack) -> list[ChangeSet]:
        """Return a stack's change sets."""
        return [one for one in list(self._all.values()) if one.stack is stack]

    def find(self, name_or_arn: str, stack: Stack | None) -> ChangeSet:
        """Return a change set by its ARN, or by its name and its stack. Raises Refused when there is none."""
        found = self._all.get(name_or_arn)
        if found is None and stack is not None:
            found = next((one for one in self.of(stack) if one.name == name_or_arn), None)
        if found is None or found.is_absent():
            raise Refused(f"ChangeSet [{name_or_arn}] does not exist", "ChangeSetNotFound")
        return found

    def remove(self, change_set: ChangeSet) -> None:
        """Forget a change set. Raises Refused while it is being made (docs/aws-behaviour.md 1.51)."""
        if change_set.is_pending():
            raise Refused(
                f"ChangeSet [{change_set.arn}] cannot be deleted in its current status of [{change_set.status}]",
                "InvalidChangeSetStatus",
            )
        self._forget(change_set)

    def _forget(self, change_set: ChangeSet) -> None:
        self._all.pop(change_set.arn, None)

    def execute(self, change_set: ChangeSet) -> None:
        """Mark a change set as executed, and delete the stack's others. Raises Refused if it can't be."""
        if change_set.execution != "AVAILABLE" or change_set.is_pending():
            raise Refused(
                f"ChangeSet [{change_set.arn}] cannot be executed in its current status of [{change_set.status}]",
                "InvalidChangeSetStatus",
            )
        self.retire(change_set.stack)
        self._all[change_set.arn] = change_set
        change_set.execution = "EXECUTE_COMPLETE"

    def retire(self, stack: Stack) -> None:
        """Delete a stack's change sets: they compare with what it no longer is."""
        for one in self.of(stack):
            self._forget(one)

    def outdate(self, reviewed: Stack, created: Stack) -> None:
        """Mark the change sets of a stack in review, which CreateStack has created, as obsolete (1.35)."""
        for one in self.of(reviewed):
            one.stack, one.execution = created, "OBSOLETE"


def described_change_set(change_set: ChangeSet) -> dict[str, Any]:
    """Describe a change set as ListChangeSets does."""
    return {
        "ChangeSetId": change_set.arn,
        "ChangeSetName": change_set.name,
        "StackId": change_set.stack.stack_id,
        "StackName": change_set.stack.name,
        "CreationTime": change_set.made_at,
        "Status": change_set.status,
        "StatusReason": None if change_set.is_pending() else change_set.failure or None,
        "ExecutionStatus": "UNAVAILABLE" if change_set.is_pending() else change_set.execution,
    }


def described_change(change: Change) -> dict[str, Any]:
    """Describe a change as DescribeChangeSet does."""
    resource_change = {
        "Action": change.action,
        "LogicalResourceId": change.logical_id,
        "PhysicalResourceId": change.physical_id or None,
        "ResourceType": change.resource_type,
        "Replacement": change.replacement if change.action == "Modify" else None,
        "Scope": change.scope,
        "Details": [_described_detail(detail) for detail in change.details],
    }
    return {"Type": "Resource", "ResourceChange": resource_change}


def _described_detail(detail: Detail) -> dict[str, Any]:
    target = {"Attribute": detail.attribute, "Name": detail.name or None, "RequiresRecreation": detail.recreation}
    return {
        "Target": target,
        "Evaluation": detail.evaluation,
        "ChangeSource": detail.source,
        "CausingEntity": detail.cause or None,
    }
