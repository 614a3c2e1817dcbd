"""Names that several parts of the template share: tags, group names, ARNs."""

from __future__ import annotations

from typing import Any

from troposphere import If, Ref, Sub, Tags

CLUSTER_TAG = "phalanx:cluster"
"""`up` gives it to the stack, and CloudFormation to what it makes (docs/aws-behaviour.md 1.25); so what is left of a
cluster can be found."""

HEAD_GROUP = Sub("${AWS::StackName}-head")
WORKERS_GROUP = Sub("${AWS::StackName}-workers")

GOES_WITH_THE_STACK: dict[str, Any] = {"DeletionPolicy": "Delete", "UpdateReplacePolicy": "Delete"}
"""Said aloud for what holds data: nothing of a cluster is left by `phalanx down`."""
STAYS_ONCE_MADE: dict[str, Any] = {"DeletionPolicy": "RetainExceptOnCreate", "UpdateReplacePolicy": "Retain"}
"""`phalanx down` decides what becomes of it; a creation that fails takes it along (docs/aws-behaviour.md 1.18)."""
STAYS: dict[str, Any] = {"DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain"}

FILE_SYSTEM = If("MakesFileSystem", Ref("FileSystem"), Ref("FileSystemId"))


def name_tag() -> Tags:
    """A name for the console, which has no other to show."""
    return Tags({"Name": Ref("AWS::StackName")})


def cluster_tag() -> Tags:
    """For what the stack's own tags do not reach, or what outlives it."""
    return Tags({CLUSTER_TAG: Ref("AWS::StackName")})


def arn(service: str, resource: str) -> Sub:
    """An ARN of this account and region; `resource` may hold ${…} of Fn::Sub."""
    return Sub(f"arn:${{AWS::Partition}}:{service}:${{AWS::Region}}:${{AWS::AccountId}}:{resource}")
