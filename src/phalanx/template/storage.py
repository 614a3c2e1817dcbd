"""What the cluster keeps: the shared file system and the log group."""

from __future__ import annotations

from troposphere import Ref, Template, efs, logs

from phalanx.plan.plan import Plan
from phalanx.template.naming import FILE_SYSTEM, GOES_WITH_THE_STACK, STAYS, STAYS_ONCE_MADE, cluster_tag, name_tag

LOG_RETENTION_DAYS = 14


def add_to(template: Template, plan: Plan) -> None:
    for resource in (_file_system(plan), _mount_target(), _log_group()):
        template.add_resource(resource)


def _file_system(plan: Plan) -> efs.FileSystem:
    return efs.FileSystem(
        "FileSystem",
        Condition="MakesFileSystem",
        Encrypted=True,
        PerformanceMode="generalPurpose",
        FileSystemTags=cluster_tag() + name_tag(),
        **(GOES_WITH_THE_STACK if plan.spec.keep == "no" else STAYS_ONCE_MADE),
    )


def _mount_target() -> efs.MountTarget:
    """One is enough: all nodes are in its zone (docs/aws-behaviour.md 4.5, 4.6)."""
    return efs.MountTarget(
        "MountTarget",
        FileSystemId=FILE_SYSTEM,
        SubnetId=Ref("PrivateSubnet"),
        SecurityGroups=[Ref("StorageSecurityGroup")],
    )


def _log_group() -> logs.LogGroup:
    """Boot logs must outlive a rollback: there is nothing else to tell why a node did not come up.

    Only `Retain` does that: RetainExceptOnCreate deletes when creation is rolled back (docs/aws-behaviour.md 1.18). So
    the group has no name of its own: CloudFormation makes one up, and the next stack of the same name never meets it.
    `phalanx down` deletes it after the stack, a failed `up` after it has saved the logs.
    """
    return logs.LogGroup("LogGroup", RetentionInDays=LOG_RETENTION_DAYS, **STAYS)
