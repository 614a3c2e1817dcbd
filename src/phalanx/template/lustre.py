"""A file system of FSx for Lustre as the shared directory: its rules, its links to S3, and where nodes mount it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from troposphere import AWSObject, Ref, Sub, ec2, fsx

from phalanx.plan.lustre_storage import PORTS
from phalanx.plan.plan import Plan
from phalanx.spec import spec_lustre
from phalanx.spec.spec_data import Place
from phalanx.template.naming import RETAIN_EXCEPT_ON_CREATE, name_tag, own_tags

# The default is 2.10, which has no links to S3 (docs/aws-behaviour.md 4.13).
_VERSION = "2.15"
_NODES, _SERVERS = "NodeSecurityGroup", "StorageSecurityGroup"
_EVENTS = ["NEW", "CHANGED", "DELETED"]


def of(plan: Plan) -> list[AWSObject]:
    """Return the resources: the rules that nodes need, then the links, and the file system if the stack makes it."""
    if not plan.uses_lustre:
        return []
    if not plan.makes_lustre:
        found = plan.facts.lustre
        return [*_let_in(found.groups[0])] if found and found.groups else []
    links = [_link(place) for place in spec_lustre.linked(plan.spec.lustre, plan.spec.data)]
    return [*_rules("Servers", _SERVERS, _SERVERS), *_rules("NodesFromServers", _NODES, _SERVERS), *links, _made(plan)]


def reached_by(plan: Plan) -> tuple[str, ...]:
    """Return what a node needs before it mounts the directory, and does not refer to."""
    return tuple(str(resource.title) for resource in of(plan) if resource.title != "FileSystem")


def place(plan: Plan) -> Sub | str:
    """Return what `mount -t lustre` takes."""
    if plan.makes_lustre:
        return Sub("${FileSystem.DNSName}@tcp:/${FileSystem.LustreMountName}")
    return plan.facts.lustre.place if plan.facts.lustre else ""


def linked(plan: Plan) -> str:
    """Return the names of the links, with commas; "+" behind those where jobs may write."""
    places = spec_lustre.linked(plan.spec.lustre, plan.spec.data)
    return ",".join(f"{one.name}{'+' if one.is_writable else ''}" for one in places)


def _made(plan: Plan) -> fsx.FileSystem:
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


def _link(place: Place) -> fsx.DataRepositoryAssociation:
    """Show a prefix's objects as files, and export what jobs write if the prefix is theirs to write."""
    policies: dict[str, Any] = {"AutoImportPolicy": fsx.AutoImportPolicy(Events=_EVENTS)}
    if place.is_writable:
        policies["AutoExportPolicy"] = fsx.AutoExportPolicy(Events=_EVENTS)
    title = place.name.replace("-", "D").replace("_", "U")
    return fsx.DataRepositoryAssociation(
        f"Link{title}",
        FileSystemId=Ref("FileSystem"),
        FileSystemPath=f"/data/{place.name}",
        DataRepositoryPath=place.url,
        BatchImportMetaDataOnCreate=True,
        S3=fsx.S3(**policies),
    )


def _rules(title: str, group: str, source: str) -> Iterator[ec2.SecurityGroupIngress]:
    for first, last in PORTS:
        yield _rule(f"{title}{first}", Ref(group), Ref(source), first, last)


def _let_in(group: str) -> Iterator[ec2.SecurityGroupIngress]:
    """Let nodes and the servers of a file system of the user's reach each other."""
    for first, last in PORTS:
        yield _rule(f"ServersFromNodes{first}", group, Ref(_NODES), first, last)
        yield _rule(f"NodesFromServers{first}", Ref(_NODES), group, first, last)


def _rule(title: str, group: Any, source: Any, first: int, last: int) -> ec2.SecurityGroupIngress:
    return ec2.SecurityGroupIngress(
        title,
        GroupId=group,
        SourceSecurityGroupId=source,
        IpProtocol="tcp",
        FromPort=first,
        ToPort=last,
        Description="Lustre",
    )
