"""Stacks of CloudFormation: their state, events and resources; to create, change and delete them.

What an update would change of a stack, a change set says, and it is executed (docs/aws-behaviour.md 1.29).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from phalanx.aws import s3_objects
from phalanx.aws.model import ChangeSet, InBucket, Resource, StackChange, StackEvent, StackState
from phalanx.errors import CloudError
from phalanx.spec.own_tags import CLUSTER_TAG
from phalanx.waits import waiting

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

# A WaitCondition takes up to 55 minutes, after the network and the file system.
CREATION_TIMEOUT_MIN = 75
# Of the names of change sets that phalanx makes.
_OURS = "phalanx-"
# CloudFormation compares a template of this size within seconds.
_DEADLINE_S = 5 * 60.0
_UNCHANGED = ("didn't contain changes", "No updates are to be performed")


def create(
    aws: Aws,
    name: str,
    template: str | InBucket,
    parameters: Mapping[str, str],
    tags: Mapping[str, str] | None = None,
    timeout_min: int = CREATION_TIMEOUT_MIN,
) -> str:
    """Start creating, with CLUSTER_TAG and `tags`; return the id. Raises StackFailed for a replaced document."""
    created = aws.call(
        "cloudformation",
        "create_stack",
        StackName=name,
        **s3_objects.as_template(aws, template),
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
        Capabilities=["CAPABILITY_IAM"],
        OnFailure="ROLLBACK",
        TimeoutInMinutes=timeout_min,
        Tags=[{"Key": key, "Value": value} for key, value in {**(tags or {}), CLUSTER_TAG: name}.items()],
    )
    return s3_objects.required_stack(aws, created["StackId"], template)


def describe(aws: Aws, name_or_id: str) -> StackState | None:
    """Return the stack's state, or None if it does not exist. A deleted stack is found only by its id."""
    answer = aws.exists("cloudformation", "describe_stacks", StackName=name_or_id)
    return _state(answer["Stacks"][0]) if answer and answer["Stacks"] else None


def events(aws: Aws, stack_id: str, after: str | None) -> list[StackEvent]:
    """Return the events after the event id `after`, oldest first; also of a deleted stack.

    Pages have the newest event first: they are read until a known event.
    """
    found: list[StackEvent] = []
    for entry in aws.pages("cloudformation", "describe_stack_events", "StackEvents", StackName=stack_id):
        if entry["EventId"] == after:
            break
        found.append(_event(entry))
    return found[::-1]


def resources(aws: Aws, stack_id: str) -> list[Resource]:
    entries = aws.pages("cloudformation", "list_stack_resources", "StackResourceSummaries", StackName=stack_id)
    return [_resource(entry) for entry in entries if entry.get("PhysicalResourceId")]


def delete(aws: Aws, stack_id: str) -> None:
    """Start deleting the stack; no error when it is gone."""
    aws.exists("cloudformation", "delete_stack", StackName=stack_id)


def _state(entry: Mapping[str, Any]) -> StackState:
    return StackState(
        name=entry["StackName"],
        stack_id=entry["StackId"],
        status=entry["StackStatus"],
        reason=entry.get("StackStatusReason", ""),
        created_s=entry["CreationTime"].timestamp(),
        updated_s=entry["LastUpdatedTime"].timestamp() if entry.get("LastUpdatedTime") else 0.0,
        resolved={
            one["ParameterKey"]: one["ResolvedValue"] for one in entry.get("Parameters", []) if "ResolvedValue" in one
        },
        outputs={output["OutputKey"]: output["OutputValue"] for output in entry.get("Outputs", [])},
        parameters={value["ParameterKey"]: value.get("ParameterValue", "") for value in entry.get("Parameters", [])},
        tags={tag["Key"]: tag["Value"] for tag in entry.get("Tags", [])},
    )


def _event(entry: Mapping[str, Any]) -> StackEvent:
    return StackEvent(
        event_id=entry["EventId"],
        time_s=entry["Timestamp"].timestamp(),
        logical_id=entry.get("LogicalResourceId", ""),
        physical_id=entry.get("PhysicalResourceId", ""),
        resource_type=entry.get("ResourceType", ""),
        status=entry.get("ResourceStatus", ""),
        reason=entry.get("ResourceStatusReason", ""),
    )


def _resource(entry: Mapping[str, Any]) -> Resource:
    return Resource(entry["LogicalResourceId"], entry["PhysicalResourceId"], entry["ResourceType"])


def review_changes(
    aws: Aws,
    stack: StackState,
    template: str | InBucket,
    parameters: Mapping[str, str],
    kept: Collection[str],
    tags: Mapping[str, str] | None = None,
) -> ChangeSet | None:
    """Have CloudFormation compare the stack with this request; return what would change, None for nothing.

    Parameters in `kept` have the value that they have now. Raises StackFailed if CloudFormation has read another
    document in the bucket.
    """
    wanted = {**(tags or {}), CLUSTER_TAG: stack.name}
    made = aws.call(
        "cloudformation",
        "create_change_set",
        StackName=stack.stack_id,
        ChangeSetName=f"{_OURS}{uuid.uuid4().hex}",
        ChangeSetType="UPDATE",
        **s3_objects.as_template(aws, template),
        Parameters=[
            *({"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()),
            *({"ParameterKey": key, "UsePreviousValue": True} for key in kept),
        ],
        Capabilities=["CAPABILITY_IAM"],
        Tags=[{"Key": key, "Value": value} for key, value in wanted.items()],
    )
    is_compared = _is_compared(aws, made["Id"])
    try:
        named = {"StackName": stack.stack_id, "ChangeSetName": made["Id"]}
        s3_objects.require_change_set(aws, named, template)
    except BaseException:
        forget_changes(aws, made["Id"])
        raise
    if not is_compared:
        forget_changes(aws, made["Id"])
        return None
    changes = aws.pages("cloudformation", "describe_change_set", "Changes", ChangeSetName=made["Id"])
    return ChangeSet(made["Id"], tuple(_changes(changes)))


def execute_changes(aws: Aws, change_set_id: str) -> None:
    """Start the update."""
    aws.call("cloudformation", "execute_change_set", ChangeSetName=change_set_id)


def forget_changes(aws: Aws, change_set_id: str) -> None:
    """Delete a change set that is not wanted."""
    aws.call("cloudformation", "delete_change_set", ChangeSetName=change_set_id)


def forget_unexecuted(aws: Aws, stack_id: str) -> None:
    """Delete the change sets that phalanx made of a stack and never executed: their review was interrupted."""
    found = aws.pages("cloudformation", "list_change_sets", "Summaries", StackName=stack_id)
    for one in [one for one in found if one["ChangeSetName"].startswith(_OURS)]:
        if one.get("ExecutionStatus") not in ("EXECUTE_IN_PROGRESS", "EXECUTE_COMPLETE"):
            forget_changes(aws, one["ChangeSetId"])


def _is_compared(aws: Aws, change_set_id: str) -> bool:
    """Wait for the comparison; return False if nothing differs. Raises CloudError for any other failure."""
    end = time.monotonic() + _DEADLINE_S
    with waiting("CloudFormation to compare the stack with the file"):
        while True:
            found = aws.call("cloudformation", "describe_change_set", ChangeSetName=change_set_id)
            if found["Status"] == "CREATE_COMPLETE":
                return True
            reason = found.get("StatusReason", "")
            if found["Status"] == "FAILED" and any(text in reason for text in _UNCHANGED):
                return False
            if found["Status"] == "FAILED" or time.monotonic() > end:
                raise CloudError(
                    f"CloudFormation can't compare the stack with the file: {found['Status']} {reason}".rstrip(),
                    "Nothing was changed.",
                    code="not-compared",
                )
            time.sleep(aws.poll_interval_s)


def _changes(found: Iterable[Mapping[str, Any]]) -> Iterator[StackChange]:
    for change in (one["ResourceChange"] for one in found if "ResourceChange" in one):
        yield StackChange(
            action=change["Action"],
            logical_id=change["LogicalResourceId"],
            resource_type=change["ResourceType"],
            replacement=change.get("Replacement", ""),
            scope=tuple(change.get("Scope", ())),
        )
