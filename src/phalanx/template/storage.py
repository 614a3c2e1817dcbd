"""What the cluster keeps: the shared file system and the log group."""

from __future__ import annotations

from troposphere import GetAtt, Ref, Template, efs, logs

from phalanx.plan import Plan
from phalanx.template.names import GOES_WITH_THE_STACK, STAYS, cluster_tag, tags

LOG_RETENTION_DAYS = 14


def add_to(template: Template, plan: Plan) -> None:  # noqa: ARG001
    for resource in (_file_system(), _mount_target(), _log_group()):
        template.add_resource(resource)


def _file_system() -> efs.FileSystem:
    return efs.FileSystem(
        "FileSystem", Encrypted=True, PerformanceMode="generalPurpose", FileSystemTags=tags(), **GOES_WITH_THE_STACK
    )


def _mount_target() -> efs.MountTarget:
    """One is enough: all nodes are in its zone (docs/aws-behaviour.md 4.5, 4.6)."""
    return efs.MountTarget(
        "MountTarget",
        FileSystemId=Ref("FileSystem"),
        SubnetId=Ref("PrivateSubnet"),
        SecurityGroups=[GetAtt("StorageSecurityGroup", "GroupId")],
    )


def _log_group() -> logs.LogGroup:
    """Boot logs must outlive a rollback: there is nothing else to tell why a node did not come up.

    Only `Retain` does that: RetainExceptOnCreate deletes when creation is rolled back (docs/aws-behaviour.md 1.18). So
    the group has no name of its own: CloudFormation makes one up, and the next stack of the same name never meets it.
    `phalanx down` deletes it after the stack, a failed `up` after it has saved the logs; it carries the cluster's tag.
    """
    return logs.LogGroup("LogGroup", RetentionInDays=LOG_RETENTION_DAYS, Tags=cluster_tag(), **STAYS)
