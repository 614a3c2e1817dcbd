"""The cluster's storage: the shared file system, of EFS or of FSx for Lustre linked to S3, and the log group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from troposphere import AWSObject, Ref, Sub, Template, ec2, efs, fsx, logs

from phalanx.plan.lustre_storage import PORTS
from phalanx.plan.plan import Plan
from phalanx.spec import spec_lustre
from phalanx.spec.makers import maker_of
from phalanx.spec.spec_data import Place
from phalanx.template.access import NFS_PORT
from phalanx.template.naming import FILE_SYSTEM, RETAIN, RETAIN_EXCEPT_ON_CREATE, name_tag, own_tags

LOG_RETENTION_DAYS = 14
# The default is 2.10, which has no links to S3 (docs/aws-behaviour.md 4.13).
_VERSION = "2.15"
_NODES, _SERVERS = "NodeSecurityGroup", "StorageSecurityGroup"
LUSTRE_PLACE = "LustrePlace"
"""The parameter for a file system that nobody has asked about."""
# With a policy, clients may do only what it allows; without one, all that reach a mount target may do all (4.23).
_CLIENT = ("ClientMount", "ClientWrite", "ClientRootAccess")
_EVERYBODY = {"Principal": {"AWS": "*"}}
_TLS_ONLY = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            **_EVERYBODY,
            "Action": [f"elasticfilesystem:{one}" for one in _CLIENT],
            "Condition": {"Bool": {"elasticfilesystem:AccessedViaMountTarget": "true"}},
        },
        {"Effect": "Deny", **_EVERYBODY, "Action": "*", "Condition": {"Bool": {"aws:SecureTransport": "false"}}},
    ],
}
_EVENTS = ["NEW", "CHANGED", "DELETED"]


def add_to(template: Template, plan: Plan) -> None:
    for resource in (*_of_efs(plan), *_of_lustre(plan), log_group()):
        template.add_resource(resource)


def reached_by(plan: Plan) -> tuple[str, ...]:
    """Return what a node needs before it mounts the shared directory, and does not refer to."""
    made = (str(resource.title) for resource in (*_of_efs(plan), *_of_lustre(plan)))
    return tuple(title for title in made if title != "FileSystem")


def _of_efs(plan: Plan) -> tuple[AWSObject, ...]:
    if not plan.uses_efs:
        return ()
    target = plan.mount_target
    return _file_system(plan), _let_in(target.groups[0]) if target else _mount_target(plan)


def _let_in(group: str) -> ec2.SecurityGroupIngress:
    """Let the nodes reach a mount target of the user's: a packet passes if one of its groups lets it in."""
    return _rule("NfsFromNodes", group, Ref(_NODES), NFS_PORT, NFS_PORT, "Nodes")


def _file_system(plan: Plan) -> efs.FileSystem:
    """Make the file system. Also with `keep: no`, `down` deletes it and not CloudFormation: `--keep yes` may follow."""
    return efs.FileSystem(
        "FileSystem",
        Condition="MakesFileSystem",
        Encrypted=True,
        PerformanceMode="generalPurpose",
        ThroughputMode=plan.throughput,
        FileSystemTags=own_tags(plan) + name_tag(),
        **({"FileSystemPolicy": _TLS_ONLY} if plan.spec.tls else {}),
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


def _of_lustre(plan: Plan) -> list[AWSObject]:
    """Return the resources: the rules that nodes need, then the links, and the file system if the stack makes it."""
    if not plan.uses_lustre:
        return []
    if not plan.makes_lustre:
        found = plan.facts.lustre
        return [*_let_lustre_in(found.groups[0])] if found and found.groups else []
    links = [_link(lustre_place) for lustre_place in spec_lustre.linked(plan.spec.lustre, plan.spec.data)]
    return [
        *_rules("Servers", _SERVERS, _SERVERS),
        *_rules("NodesFromServers", _NODES, _SERVERS),
        *links,
        _lustre_file_system(plan),
    ]


def lustre_place(plan: Plan) -> Sub | Ref | str:
    """Return what `mount -t lustre` takes."""
    if plan.makes_lustre:
        return Sub("${FileSystem.DNSName}@tcp:/${FileSystem.LustreMountName}")
    if is_unknown_lustre(plan):
        return Ref(LUSTRE_PLACE)
    return plan.facts.lustre.place if plan.facts.lustre else ""


def is_unknown_lustre(plan: Plan) -> bool:
    """Whether nobody has asked FSx how the user's file system is mounted."""
    return plan.uses_lustre and not plan.makes_lustre and plan.facts.lustre is None


def linked_prefixes(plan: Plan) -> str:
    """Return the names of the links, with commas; "+" behind those where jobs may write."""
    places = spec_lustre.linked(plan.spec.lustre, plan.spec.data)
    return ",".join(f"{one.name}{'+' if one.is_writable else ''}" for one in places)


def _lustre_file_system(plan: Plan) -> fsx.FileSystem:
    """Make the file system. FSx refuses one whose servers' group does not let them in (docs/aws-behaviour.md 4.12).

    `down` deletes it and not CloudFormation: deleting the stack in the console must not delete data.
    """
    lustre = plan.spec.lustre
    speed: dict[str, Any] = {"DeploymentType": spec_lustre.deployment(lustre).upper()}
    if throughput := spec_lustre.throughput(lustre):
        speed["PerUnitStorageThroughput"] = throughput
    return fsx.FileSystem(
        "FileSystem",
        FileSystemType="LUSTRE",
        FileSystemTypeVersion=_VERSION,
        StorageCapacity=spec_lustre.size_gib(lustre),
        SubnetIds=[Ref("PrivateSubnet")],
        SecurityGroupIds=[Ref(_SERVERS)],
        LustreConfiguration=fsx.LustreConfiguration(**speed),
        Tags=own_tags(plan) + name_tag(),
        DependsOn=[f"Servers{first}" for first, _ in PORTS],
        **RETAIN_EXCEPT_ON_CREATE,
    )


def _link(lustre_place: Place) -> fsx.DataRepositoryAssociation:
    """Show a prefix's objects as files, and export what jobs write if the prefix is theirs to write."""
    policies: dict[str, Any] = {"AutoImportPolicy": fsx.AutoImportPolicy(Events=_EVENTS)}
    if lustre_place.is_writable:
        policies["AutoExportPolicy"] = fsx.AutoExportPolicy(Events=_EVENTS)
    title = lustre_place.name.replace("-", "D").replace("_", "U")
    return fsx.DataRepositoryAssociation(
        f"Link{title}",
        FileSystemId=Ref("FileSystem"),
        FileSystemPath=f"/data/{lustre_place.name}",
        DataRepositoryPath=lustre_place.url,
        BatchImportMetaDataOnCreate=True,
        S3=fsx.S3(**policies),
    )


def _rules(title: str, group: str, source: str) -> Iterator[ec2.SecurityGroupIngress]:
    for first, last in PORTS:
        yield _rule(f"{title}{first}", Ref(group), Ref(source), first, last)


def _let_lustre_in(group: str) -> Iterator[ec2.SecurityGroupIngress]:
    """Let nodes and the servers of a file system of the user's reach each other."""
    for first, last in PORTS:
        yield _rule(f"ServersFromNodes{first}", group, Ref(_NODES), first, last)
        yield _rule(f"NodesFromServers{first}", Ref(_NODES), group, first, last)


def _rule(
    title: str, group: Any, source: Any, first: int, last: int, description: str = "Lustre"
) -> ec2.SecurityGroupIngress:
    return ec2.SecurityGroupIngress(
        title,
        GroupId=group,
        SourceSecurityGroupId=source,
        IpProtocol="tcp",
        FromPort=first,
        ToPort=last,
        Description=description,
    )
