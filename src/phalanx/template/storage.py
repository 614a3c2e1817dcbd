"""The cluster's storage: the shared file system and the log group."""

from __future__ import annotations

from troposphere import AWSObject, Ref, Template, ec2, efs, logs

from phalanx.plan.plan import Plan
from phalanx.spec.makers import maker_of
from phalanx.template import lustre
from phalanx.template.access import NFS_PORT
from phalanx.template.naming import FILE_SYSTEM, RETAIN, RETAIN_EXCEPT_ON_CREATE, name_tag, own_tags

LOG_RETENTION_DAYS = 14


def add_to(template: Template, plan: Plan) -> None:
    for resource in (*_of_efs(plan), *lustre.of(plan), log_group()):
        template.add_resource(resource)


def reached_by(plan: Plan) -> tuple[str, ...]:
    """Return what a node needs before it mounts the shared directory, and does not refer to."""
    return (*(str(resource.title) for resource in _of_efs(plan)[1:]), *lustre.reached_by(plan))


def _of_efs(plan: Plan) -> tuple[AWSObject, ...]:
    if not plan.uses_efs:
        return ()
    target = plan.mount_target
    return _file_system(plan), _let_in(target.groups[0]) if target else _mount_target(plan)


def _let_in(group: str) -> ec2.SecurityGroupIngress:
    """Let the nodes reach a mount target of the user's: a packet passes if one of its groups lets it in."""
    return ec2.SecurityGroupIngress(
        "NfsFromNodes",
        GroupId=group,
        IpProtocol="tcp",
        FromPort=NFS_PORT,
        ToPort=NFS_PORT,
        SourceSecurityGroupId=Ref("NodeSecurityGroup"),
        Description="Nodes",
    )


def _file_system(plan: Plan) -> efs.FileSystem:
    """Make the file system. Also with `keep: no`, `down` deletes it and not CloudFormation: `--keep yes` may follow."""
    return efs.FileSystem(
        "FileSystem",
        Condition="MakesFileSystem",
        Encrypted=True,
        PerformanceMode="generalPurpose",
        ThroughputMode=plan.throughput,
        FileSystemTags=own_tags(plan) + name_tag(),
        **RETAIN_EXCEPT_ON_CREATE,
    )


def _mount_target(plan: Plan) -> efs.MountTarget:
    """Make one mount target, which is enough: all nodes are in its zone (docs/aws-behaviour.md 4.5, 4.6)."""
    subnet = "PublicSubnet" if maker_of(plan.spec.cloud).in_public_subnet else "PrivateSubnet"
    return efs.MountTarget(
        "MountTarget",
        FileSystemId=FILE_SYSTEM,
        SubnetId=Ref(subnet),
        SecurityGroups=[Ref("StorageSecurityGroup")],
    )


def log_group() -> logs.LogGroup:
    """Make the log group, which outlives a rollback: nothing else shows why a node did not come up.

    Only `Retain` achieves that: RetainExceptOnCreate deletes when a creation is rolled back (docs/aws-behaviour.md
    1.18). CloudFormation generates the group's name, so that it never conflicts with the next stack of the same name.
    `phalanx down` deletes the group after the stack, and a failed `up` after it has saved the logs.
    """
    return logs.LogGroup("LogGroup", RetentionInDays=LOG_RETENTION_DAYS, **RETAIN)
