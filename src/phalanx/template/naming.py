"""Names that several parts of the template share: tags, group names, ARNs."""

from __future__ import annotations

from typing import Any

from troposphere import If, Ref, Sub, Tags

from phalanx.plan.plan import Plan
from phalanx.spec.own_tags import CLUSTER_TAG

HEAD_GROUP = Sub("${AWS::StackName}-head")
WORKERS_GROUP = Sub("${AWS::StackName}-workers")

DELETE: dict[str, Any] = {"DeletionPolicy": "Delete", "UpdateReplacePolicy": "Delete"}
"""For resources with data, explicitly: `phalanx down` leaves nothing of a cluster."""
RETAIN_EXCEPT_ON_CREATE: dict[str, Any] = {"DeletionPolicy": "RetainExceptOnCreate", "UpdateReplacePolicy": "Retain"}
"""`phalanx down` decides whether to delete it; a failed creation does (docs/aws-behaviour.md 1.18)."""
REMOVAL_ROLE = "RemovalRole"
"""The logical id of the role with whose rights a forgotten cluster's stack is deleted: it outlives the stack."""
RETAIN: dict[str, Any] = {"DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain"}

FILE_SYSTEM = If("MakesFileSystem", Ref("FileSystem"), Ref("FileSystemId"))
"""The id of the EFS file system, where there is one (`Plan.storage`)."""


def name_tag() -> Tags:
    """Return the name that the console shows."""
    return Tags({"Name": Ref("AWS::StackName")})


def own_tags(plan: Plan) -> Tags:
    """Return the cluster's and the user's tags, for what the stack's do not reach and for what outlives the stack."""
    return Tags({CLUSTER_TAG: Ref("AWS::StackName"), **(plan.spec.tags or {})})


def arn(service: str, resource: str) -> Sub:
    """Build an ARN in this account and region; `resource` may contain ${…} for Fn::Sub."""
    return Sub(f"arn:${{AWS::Partition}}:{service}:${{AWS::Region}}:${{AWS::AccountId}}:{resource}")


def subnet_arn(parameter: str) -> Sub:
    """Build the ARN of a parameter's subnet; it names the account that shares it (docs/aws-behaviour.md 2.65)."""
    return Sub(f"arn:${{AWS::Partition}}:ec2:${{AWS::Region}}:*:subnet/${{{parameter}}}")
