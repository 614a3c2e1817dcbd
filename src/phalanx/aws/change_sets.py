"""Change sets: what CloudFormation would make or change of a stack, and what its validations say of that.

Nothing exists or changes before a change set is executed (docs/aws-behaviour.md 1.29, 1.49 to 1.52).
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phalanx.aws import s3_objects, stacks
from phalanx.aws.model import IN_REVIEW, ChangeSet, InBucket, StackChange, StackState, Validation
from phalanx.aws.refusals import code, is_gone
from phalanx.counts import first_of
from phalanx.errors import CloudError
from phalanx.spec.own_tags import CLUSTER_TAG
from phalanx.waits import waiting

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

# CloudFormation compares a template of this size within seconds, and validates it within a minute or two.
_DEADLINE_S = 5 * 60.0
# What was just made may not be found yet, and what is just being made can't be deleted (docs/aws-behaviour.md 1.51).
_NOT_YET_S = 30.0
_DELETION_S = 120.0
_LOOKS = 5
_PASSING = ("not-deleted", "throttled")
_UNCHANGED = ("didn't contain changes", "No updates are to be performed")
_EVENTS = ("VALIDATION_ERROR", "HOOK_INVOCATION_ERROR")
_CREATE, _UPDATE = "CREATE", "UPDATE"


class NotComparedError(CloudError):
    """CloudFormation can't make a change set. `validations` are those that stopped it, if they could be read."""

    def __init__(self, reason: str, validations: Sequence[Validation] = ()) -> None:
        text = first_of(map(str, validations), "; ") or reason
        super().__init__(
            f"CloudFormation can't compare the stack with the file: {text}", "Nothing was changed.", code="not-compared"
        )
        self.validations = tuple(validations)


class Proposed:
    """A change set of this process. `failure` is why it can't be executed, "" if it can.

    The ids are "" until CloudFormation has answered the request.
    """

    def __init__(self, aws: Aws, stack: str, kind: str, role: str | None = None) -> None:
        self._aws, self.stack, self._kind, self._role = aws, stack, kind, role
        self._name = f"{stacks.OURS}{uuid.uuid4().hex}"
        self._may_exist = False
        self.stack_id = self.change_set_id = self.failure = ""

    def request(
        self, template: str | InBucket, parameters: Mapping[str, str], kept: Collection[str], tags: Mapping[str, str]
    ) -> None:
        """Have it made. Raises StackFailed if CloudFormation has read another document in the bucket."""
        self._may_exist = True
        try:
            made = self._requested(template, parameters, kept, tags)
        except CloudError as error:
            self._may_exist = not error.was_refused
            raise
        self.change_set_id, self.stack_id = made["Id"], made.get("StackId", self.stack)
        self.failure = self._settled()
        if not self.failure or self.changes_nothing:
            named = {"StackName": self.stack_id, "ChangeSetName": self.change_set_id}
            s3_objects.require_change_set(self._aws, named, template)

    @property
    def changes_nothing(self) -> bool:
        return any(text in self.failure for text in _UNCHANGED)

    def _requested(
        self, template: str | InBucket, parameters: Mapping[str, str], kept: Collection[str], tags: Mapping[str, str]
    ) -> Mapping[str, Any]:
        return self._aws.call(
            "cloudformation",
            "create_change_set",
            StackName=self.stack,
            ChangeSetName=self._name,
            ChangeSetType=self._kind,
            **s3_objects.as_template(self._aws, template),
            Parameters=[
                *({"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()),
                *({"ParameterKey": key, "UsePreviousValue": True} for key in kept),
            ],
            Capabilities=["CAPABILITY_IAM"],
            Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
            **({"RoleARN": self._role} if self._role else {}),
        )

    def changes(self) -> tuple[StackChange, ...]:
        found = self._aws.pages("cloudformation", "describe_change_set", "Changes", ChangeSetName=self.change_set_id)
        return tuple(_changes(found))

    def validations(self) -> list[Validation]:
        """Return what CloudFormation's validations, and the account's hooks, say of it."""
        return validations(self._aws, ChangeSetName=self.change_set_id)

    def refusal(self) -> tuple[str, list[Validation]]:
        """Return CloudFormation's reason of a failure, and the validations that stopped it, if they can be read."""
        try:
            return self.failure, [one for one in self.validations() if one.blocks]
        except CloudError as error:
            return f"{self.failure} (its events can't be read: {error.message})", []

    def _settled(self) -> str:
        """Wait until CloudFormation has made it; return why it can't be executed, "" if it can. Raises CloudError."""
        began = time.monotonic()
        with waiting("CloudFormation to compare and validate the document"):
            while True:
                found = self._described(time.monotonic() - began)
                if found.get("Status") == "CREATE_COMPLETE":
                    return ""
                if found.get("Status") == "FAILED":
                    return found.get("StatusReason", "FAILED")
                if time.monotonic() - began > _DEADLINE_S:
                    raise NotComparedError(found.get("Status", "no answer"))
                time.sleep(self._aws.poll_interval_s)

    def _described(self, since_s: float) -> Mapping[str, Any]:
        """Describe it; {} if CloudFormation does not find it yet. Raises CloudError if somebody has deleted it."""
        found = self._aws.exists("cloudformation", "describe_change_set", ChangeSetName=self.change_set_id)
        if found is None and since_s > _NOT_YET_S:
            raise CloudError(
                f"the change set {self._name} of stack {self.stack} is gone: another command has removed it",
                "Run the same command again.",
                code="not-compared",
            )
        return found or {}

    def remove(self) -> None:
        """Delete it, and the empty stack that it has made. Raises CloudError if that may be left."""
        if not self._may_exist:
            return
        with waiting("CloudFormation to delete the change set"):
            if not self.stack_id and not self._find():
                return
            if self._kind == _CREATE:
                remove_empty_stack(self._aws, self.stack_id, self._name)
            else:
                _until_deleted(self._aws, lambda: forget(self._aws, self.change_set_id))

    def _find(self) -> bool:
        """Learn its ids when the answer to the request was lost; return whether there is such a change set."""
        named = {"StackName": self.stack, "ChangeSetName": self._name}
        for _ in range(_LOOKS):
            found = self._aws.exists("cloudformation", "describe_change_set", **named)
            if found:
                self.change_set_id, self.stack_id = found["ChangeSetId"], found["StackId"]
                return True
            time.sleep(self._aws.poll_interval_s)
        return False


def of_new_stack(aws: Aws, name: str, role: str | None = None) -> Proposed:
    """Return a change set, yet to be requested, that would create a stack of this name, with this service role."""
    return Proposed(aws, name, _CREATE, role)


def review(
    aws: Aws,
    stack: StackState,
    template: str | InBucket,
    parameters: Mapping[str, str],
    kept: Collection[str],
    tags: Mapping[str, str] | None = None,
) -> ChangeSet | None:
    """Have CloudFormation compare the stack with this request; return what would change, None for nothing.

    Parameters in `kept` have the value that they have now. Raises StackFailed if CloudFormation has read another
    document in the bucket, and CloudError for what it refuses. Without a result, no change set is left.
    """
    proposed, result = Proposed(aws, stack.stack_id, _UPDATE), None
    try:
        proposed.request(template, parameters, kept, {**(tags or {}), CLUSTER_TAG: stack.name})
        if proposed.failure and not proposed.changes_nothing:
            raise NotComparedError(*proposed.refusal())
        result = None if proposed.failure else ChangeSet(proposed.change_set_id, proposed.changes())
        return result
    finally:
        if result is None:
            proposed.remove()


def execute(aws: Aws, change_set_id: str) -> None:
    """Start the update."""
    aws.call("cloudformation", "execute_change_set", ChangeSetName=change_set_id)


def forget(aws: Aws, change_set_id: str) -> None:
    """Delete a change set that is not wanted."""
    aws.call("cloudformation", "delete_change_set", ChangeSetName=change_set_id)


def forget_unexecuted(aws: Aws, stack_id: str) -> None:
    """Delete the change sets that phalanx made of a stack and never executed: their review was interrupted."""
    found = stacks.change_sets_of(aws, stack_id)
    for one in [one for one in found if one["ChangeSetName"].startswith(stacks.OURS)]:
        if one.get("ExecutionStatus") not in ("EXECUTE_IN_PROGRESS", "EXECUTE_COMPLETE"):
            forget(aws, one["ChangeSetId"])


def remove_empty_stack(aws: Aws, stack_id: str, change_set: str = "") -> None:
    """Delete a stack that is only in review, with its change sets. One that has become a real stack stays.

    So does one that has others' change sets beside this one, which is deleted. A stack that is gone is still described
    by its id: if it is not, CloudFormation does not know of it yet.
    """
    began = time.monotonic()

    def delete() -> None:
        status = stacks.status(aws, stack_id)
        if not status and time.monotonic() - began < _NOT_YET_S:
            raise CloudError(f"CloudFormation does not find stack {stack_id} yet", code="not-deleted")
        if status != IN_REVIEW:
            return
        there = stacks.change_sets_of(aws, stack_id)
        if change_set and any(one["ChangeSetName"] != change_set for one in there):
            mine = [one["ChangeSetId"] for one in there if one["ChangeSetName"] == change_set]
            for one in mine:
                forget(aws, one)
            return
        stacks.delete(aws, stack_id)
        raise CloudError(f"stack {stack_id} is still {status}", code="not-deleted")

    _until_deleted(aws, delete)


def _until_deleted(aws: Aws, delete: Callable[[], None]) -> None:
    """Try to delete until that works: what is still being made, or is not found yet, can't be deleted."""
    end = time.monotonic() + _DELETION_S
    while True:
        try:
            delete()
            return
        except CloudError as error:
            again = error.code in _PASSING or code(error.__cause__).startswith("InvalidChangeSetStatus")
            if is_gone(error.__cause__):
                return
            if not again or time.monotonic() > end:
                raise
        time.sleep(aws.poll_interval_s)


def in_review(aws: Aws) -> Iterator[str]:
    """Yield the names of the stacks that `phalanx plan --on-aws` made and could not remove."""
    found = aws.pages("cloudformation", "list_stacks", "StackSummaries", StackStatusFilter=[IN_REVIEW])
    for one in found:
        state = stacks.describe(aws, one["StackId"])
        if state is not None and state.in_review and state.ours:
            yield state.name


def validations(aws: Aws, **where: Any) -> list[Validation]:
    """Return what the validations of an operation say that failed, each once."""
    found = aws.pages("cloudformation", "describe_events", "OperationEvents", **where)
    return list(dict.fromkeys(_validation(one) for one in found if one.get("EventType") in _EVENTS))


def of_creation(aws: Aws, stack_id: str) -> list[Validation]:
    """Return what stopped CloudFormation before it made anything of a stack; [] if it can't be asked."""
    try:
        found = validations(aws, StackName=stack_id, Filters={"FailedEvents": True})
    except CloudError:
        return []
    return [one for one in found if one.blocks]


def _validation(event: Mapping[str, Any]) -> Validation:
    is_hook = event["EventType"] == "HOOK_INVOCATION_ERROR"
    reason, name, mode = (
        event.get(one, "")
        for one in (
            ("HookStatusReason", "HookType", "HookFailureMode")
            if is_hook
            else ("ValidationStatusReason", "ValidationName", "ValidationFailureMode")
        )
    )
    return Validation(
        logical_id=event.get("LogicalResourceId", ""),
        resource_type=event.get("ResourceType", ""),
        reason=re.sub(r"\s+", " ", reason).strip() or name,
        name=name,
        path=event.get("ValidationPath", ""),
        blocks=mode != "WARN",
    )


def _changes(found: Iterable[Mapping[str, Any]]) -> Iterator[StackChange]:
    for change in (one["ResourceChange"] for one in found if "ResourceChange" in one):
        yield StackChange(
            action=change["Action"],
            logical_id=change["LogicalResourceId"],
            resource_type=change["ResourceType"],
            replacement=change.get("Replacement", ""),
            scope=tuple(change.get("Scope", ())),
        )
