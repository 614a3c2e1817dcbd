"""Change sets of CloudFormation: what an update would change of a stack, and the update (aws-behaviour 1.29)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from phalanx.aws import s3_objects
from phalanx.aws.model import ChangeSet, InBucket, StackChange, StackState
from phalanx.errors import CloudError
from phalanx.spec.own_tags import CLUSTER_TAG
from phalanx.waits import waiting

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

# Of the names of change sets that phalanx makes.
_OURS = "phalanx-"
# CloudFormation compares a template of this size within seconds.
_DEADLINE_S = 5 * 60.0
_UNCHANGED = ("didn't contain changes", "No updates are to be performed")


def review(
    api: Aws,
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
    made = api.call(
        "cloudformation",
        "create_change_set",
        StackName=stack.stack_id,
        ChangeSetName=f"{_OURS}{uuid.uuid4().hex}",
        ChangeSetType="UPDATE",
        **s3_objects.as_template(api, template),
        Parameters=[
            *({"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()),
            *({"ParameterKey": key, "UsePreviousValue": True} for key in kept),
        ],
        Capabilities=["CAPABILITY_IAM"],
        Tags=[{"Key": key, "Value": value} for key, value in wanted.items()],
    )
    is_complete = _is_complete(api, made["Id"])
    try:
        named = {"StackName": stack.stack_id, "ChangeSetName": made["Id"]}
        s3_objects.require_change_set(api, named, template)
    except BaseException:
        forget(api, made["Id"])
        raise
    if not is_complete:
        forget(api, made["Id"])
        return None
    changes = api.pages("cloudformation", "describe_change_set", "Changes", ChangeSetName=made["Id"])
    return ChangeSet(made["Id"], tuple(_changes(changes)))


def execute(api: Aws, change_set_id: str) -> None:
    """Start the update."""
    api.call("cloudformation", "execute_change_set", ChangeSetName=change_set_id)


def forget(api: Aws, change_set_id: str) -> None:
    """Delete a change set that is not wanted."""
    api.call("cloudformation", "delete_change_set", ChangeSetName=change_set_id)


def forget_all(api: Aws, stack_id: str) -> None:
    """Delete the change sets that phalanx made of a stack and never executed: their review was interrupted."""
    found = api.pages("cloudformation", "list_change_sets", "Summaries", StackName=stack_id)
    for one in [one for one in found if one["ChangeSetName"].startswith(_OURS)]:
        if one.get("ExecutionStatus") not in ("EXECUTE_IN_PROGRESS", "EXECUTE_COMPLETE"):
            forget(api, one["ChangeSetId"])


def _is_complete(api: Aws, change_set_id: str) -> bool:
    """Wait for the comparison; return False if nothing differs. Raises CloudError for any other failure."""
    end = time.monotonic() + _DEADLINE_S
    with waiting("CloudFormation to compare the stack with the file"):
        while True:
            found = api.call("cloudformation", "describe_change_set", ChangeSetName=change_set_id)
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
            time.sleep(api.poll_interval_s)


def _changes(found: Iterable[Mapping[str, Any]]) -> Iterator[StackChange]:
    for change in (one["ResourceChange"] for one in found if "ResourceChange" in one):
        yield StackChange(
            action=change["Action"],
            logical_id=change["LogicalResourceId"],
            resource_type=change["ResourceType"],
            replacement=change.get("Replacement", ""),
            scope=tuple(change.get("Scope", ())),
        )
