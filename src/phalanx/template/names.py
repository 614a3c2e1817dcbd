"""Names that several parts of the template share: tags, group names, ARNs."""

from __future__ import annotations

from typing import Any

from troposphere import If, Ref, Sub, Tags

CLUSTER_TAG = "phalanx:cluster"
"""Every resource that can be tagged carries it, so that what is left of a cluster can be found."""
ROLE_TAG = "phalanx:role"

HEAD_GROUP = Sub("${AWS::StackName}-head")
WORKERS_GROUP = Sub("${AWS::StackName}-workers")

GOES_WITH_THE_STACK: dict[str, Any] = {"DeletionPolicy": "Delete", "UpdateReplacePolicy": "Delete"}
"""Said aloud for what holds data: nothing of a cluster is left by `phalanx down`."""
STAYS_ONCE_MADE: dict[str, Any] = {"DeletionPolicy": "RetainExceptOnCreate", "UpdateReplacePolicy": "Retain"}
"""`phalanx down` decides what becomes of it; a creation that fails takes it along (docs/aws-behaviour.md 1.18)."""
STAYS: dict[str, Any] = {"DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain"}

FILE_SYSTEM = If("MakesFileSystem", Ref("FileSystem"), Ref("FileSystemId"))


def tags(name: str = "") -> Tags:
    """The cluster's tag and a name for the console, which has no other name to show for these resources."""
    shown: Any = Sub(f"${{AWS::StackName}}-{name}") if name else Ref("AWS::StackName")
    return Tags({CLUSTER_TAG: Ref("AWS::StackName"), "Name": shown})


def cluster_tag() -> Tags:
    """For resources whose generated names begin with the stack's."""
    return Tags({CLUSTER_TAG: Ref("AWS::StackName")})


def arn(service: str, resource: str) -> Sub:
    """An ARN of this account and region; `resource` may hold ${…} of Fn::Sub."""
    return Sub(f"arn:${{AWS::Partition}}:{service}:${{AWS::Region}}:${{AWS::AccountId}}:{resource}")
