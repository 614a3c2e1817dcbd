"""Stacks of CloudFormation: their state, events and resources; to create and delete them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from phalanx.aws import s3_objects
from phalanx.aws.model import InBucket, Resource, StackEvent, StackState
from phalanx.spec.own_tags import CLUSTER_TAG

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

# A WaitCondition takes up to 55 minutes, after the network and the file system.
CREATION_TIMEOUT_MIN = 75
OURS = "phalanx-"
"""How the names of change sets begin that phalanx makes."""


def create(
    aws: Aws,
    name: str,
    template: str | InBucket,
    parameters: Mapping[str, str],
    tags: Mapping[str, str] | None = None,
    timeout_min: int = CREATION_TIMEOUT_MIN,
    role: str | None = None,
) -> str:
    """Start creating, with CLUSTER_TAG and `tags`; return the id. Raises StackFailed for a replaced document.

    CloudFormation acts with the rights of `role` in this and all later operations (docs/aws-behaviour.md 1.33).
    """
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
        **({"RoleARN": role} if role else {}),
    )
    return s3_objects.required_stack(aws, created["StackId"], template)


def describe(aws: Aws, name_or_id: str) -> StackState | None:
    """Return the stack's state, or None if it does not exist. A deleted stack is found only by its id."""
    answer = aws.exists("cloudformation", "describe_stacks", StackName=name_or_id)
    if not answer or not answer["Stacks"]:
        return None
    state = _state(answer["Stacks"][0])
    return replace(state, tags=_tags_in_review(aws, state)) if state.in_review else state


def status(aws: Aws, stack_id: str) -> str:
    """Return only the stack's status; "" if it does not exist."""
    answer = aws.exists("cloudformation", "describe_stacks", StackName=stack_id)
    return answer["Stacks"][0]["StackStatus"] if answer and answer["Stacks"] else ""


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


def change_sets_of(aws: Aws, stack_id: str) -> list[dict[str, Any]]:
    """Return the change sets of a stack, as CloudFormation lists them."""
    return list(aws.pages("cloudformation", "list_change_sets", "Summaries", StackName=stack_id))


def _tags_in_review(aws: Aws, state: StackState) -> Mapping[str, str]:
    """Return the tags that a stack in review would get, which only its change sets have (docs/aws-behaviour.md 1.52).

    With somebody else's change set it is not ours, whatever its tags would be.
    """
    found = change_sets_of(aws, state.stack_id)
    if not found or not all(one["ChangeSetName"].startswith(OURS) for one in found):
        return {}
    made = aws.exists("cloudformation", "describe_change_set", ChangeSetName=found[0]["ChangeSetId"]) or {}
    return {tag["Key"]: tag["Value"] for tag in made.get("Tags", [])}
