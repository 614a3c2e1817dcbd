"""The endpoints of a VPC: which ones a private cluster needs, which exist, and which its stack makes. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator

from phalanx.errors import SpecError
from phalanx.plan.existing_vpc import Endpoint, ExistingVpc
from phalanx.plan.machine_images import ImageChoice
from phalanx.spec.cloud_names import is_local
from phalanx.spec.makers import AUTO_SCALING, maker_of
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_data import mounted
from phalanx.spec.spec_storage import HEAD, LUSTRE

GATEWAYS = ("dynamodb", "s3")
"""The services that have gateway endpoints, which cost nothing."""
ENDPOINTS = {"S3Endpoint": "s3", "DynamoDBEndpoint": "dynamodb"}
"""Their names in the document. Here, because `status` needs them, and would take a fifth longer with the template."""
# What Session Manager's agent on the head calls (docs/aws-behaviour.md 2.55).
SESSIONS = ("ssm", "ssmmessages")


def made(spec: ClusterSpec, found: ExistingVpc | None) -> tuple[str, ...]:
    """Return the services whose interface endpoints the stack makes: those without which nodes can't call them.

    A VPC may have only one endpoint with private DNS for a service (docs/aws-behaviour.md 2.53).
    """
    needed = interfaces(spec)
    if found is None:
        return needed
    there = {one.service for one in found.endpoints if not one.tables}
    return tuple(one for one in needed if one not in there) if found.is_closed else ()


def made_gateways(spec: ClusterSpec, found: ExistingVpc) -> dict[str, tuple[str, ...]]:
    """Return the route tables for which the stack makes a gateway endpoint, by service.

    A route table takes one for each service (docs/aws-behaviour.md 2.57).
    """
    if not spec.is_private:
        return {}
    closed = dict.fromkeys(one.table for one in found.subnets if not one.way_out)
    lacking = {service: tuple(one for one in closed if one not in _tables(found, service)) for service in GATEWAYS}
    return {service: tables for service, tables in lacking.items() if tables}


def is_offline(spec: ClusterSpec, found: ExistingVpc | None) -> bool:
    """Whether a node has no way to the internet. Where another gateway leads is not known."""
    return spec.is_private and (found is None or found.is_closed)


def wrong(spec: ClusterSpec, found: ExistingVpc) -> Iterator[str]:
    """Yield each endpoint that takes over a service's name and does not let the nodes in, or that can't be made."""
    if found.owner and (missing := (*made(spec, found), *made_gateways(spec, found))):
        yield (
            f"{found.vpc} belongs to account {found.owner}, where only that account can make the endpoints that nodes "
            f"need: {', '.join(missing)}. Ask its owner for them, or for a way out"
        )
        return
    for one in _used(spec, found):
        if out := [block for block in found.networks if one.open_to is not None and not _covers(one.open_to, block)]:
            rule = f"aws ec2 authorize-security-group-ingress --group-id {one.groups[0]} --protocol tcp --port 443"
            commands = "; ".join(f"`{rule} --cidr {block}`" for block in out)
            yield f"the endpoint {_name(one)} does not let HTTPS in from {' and '.join(out)}: {commands}"


def warnings(spec: ClusterSpec, found: ExistingVpc) -> Iterator[str]:
    """Yield what could keep nodes from the services, and what the new endpoints change for others."""
    zone = found.workers.zone
    for one in _used(spec, found):
        if one.open_to is None:
            yield f"the rules of your endpoint {_name(one)} name a prefix list, which must have the nodes' addresses"
        if zone not in one.zones:
            where = " and ".join(one.zones)
            yield f"your endpoint {_name(one)} is in {where}: calls from {zone} cross zones, which costs by the GB"
    for one in (*_used(spec, found), *_gateways(spec, found)):
        if not one.is_open:
            yield f"your endpoint {_name(one)} has a policy of its own, which must allow the calls of the nodes' roles"
    if made(spec, found):
        yield (
            f"the new endpoints serve all of {found.vpc}: until `down`, their services' names lead there for all of "
            "its instances"
        )


def described(spec: ClusterSpec, found: ExistingVpc) -> str:
    """Describe a private cluster's network."""
    head, workers = (one.subnet_id for one in (found.head, found.workers))
    where = f"{head} (all nodes)" if head == workers else f"{head} (head), {workers} (workers)"
    return f"your {found.vpc or 'VPC'}: {where}, no public address; {_way_to_aws(spec, found)}; security groups"


def _way_to_aws(spec: ClusterSpec, found: ExistingVpc) -> str:
    if not found.is_closed:
        return f"{' and '.join(dict.fromkeys(one.way_out for one in found.subnets))} as the way to AWS"
    new = [*made(spec, found), *made_gateways(spec, found)]
    theirs = [one for one in (*interfaces(spec), *reversed(GATEWAYS)) if one not in new]
    parts = [f"endpoints for {', '.join(new)}"] if new else []
    parts += [f"yours for {', '.join(theirs)}"] if theirs else []
    return ", ".join(parts)


def _used(spec: ClusterSpec, found: ExistingVpc) -> Iterator[Endpoint]:
    """Yield the interface endpoints to which the names lead that nodes call."""
    used = (*called(spec), *GATEWAYS)
    return (one for one in found.endpoints if not one.tables and one.service in used)


def _gateways(spec: ClusterSpec, found: ExistingVpc) -> Iterator[Endpoint]:
    """Yield the gateway endpoints on the way of a private cluster's nodes."""
    tables = {one.table for one in found.subnets} if spec.is_private else set[str]()
    return (one for one in found.endpoints if one.service in GATEWAYS and tables & {*one.tables})


def _tables(found: ExistingVpc, service: str) -> set[str]:
    return {table for one in found.endpoints if one.service == service for table in one.tables}


def _covers(networks: Iterable[str], block: str) -> bool:
    """Whether the networks together have all addresses of the block."""
    whole = ipaddress.collapse_addresses(ipaddress.IPv4Network(one) for one in networks)
    return any(ipaddress.IPv4Network(block).subnet_of(one) for one in whole)


def _name(one: Endpoint) -> str:
    return f"{one.endpoint_id} ({one.service})"


def interfaces(spec: ClusterSpec) -> tuple[str, ...]:
    """Return the services whose interface endpoints the VPC needs; none where there is a way to the internet.

    They are those of `plan --egress`, which follow from the roles of the nodes (tests/unit/test_private_access.py).
    """
    return tuple(sorted((*called(spec), *SESSIONS))) if spec.is_private else ()


def called(spec: ClusterSpec) -> tuple[str, ...]:
    """Return the services with interface endpoints that agents call."""
    return (*maker_of(spec.cloud).agents_call, *(("monitoring",) if spec.sends_metrics else ()))


NEEDED = (*GATEWAYS, *AUTO_SCALING.agents_call, *SESSIONS)
"""The services without which no private cluster works."""


def refuse_unsuited(spec: ClusterSpec, image: ImageChoice, offline: bool) -> None:
    """Raise SpecError for what needs packages from the internet where nodes do not reach it."""
    if not offline or (is_local(spec.cloud) and "local" not in (image.contents or {})):
        return
    able = f"Choose an image that has all: {', '.join(image.complete)}, or your own (`phalanx image build`)."
    if image.packages:
        lacks = ", ".join(image.packages)
        raise SpecError(
            f"image: {image.alias} lacks {lacks}, and no node can reach its distribution's mirrors",
            able,
            code="image-lacks",
        )
    if spec.storage == LUSTRE and not image.has_lustre:
        raise SpecError(
            f"storage: {image.alias} lacks Lustre's client, and no node can reach a mirror that has it",
            "Choose `image: dlami-base`, which has it, or your own image.",
            code="image-lacks",
        )
    if spec.storage == HEAD and image.has_apt:
        raise SpecError(
            "storage: the head would need nfs-kernel-server, and no node can reach its distribution's mirrors",
            "Leave the line out for EFS, or choose `image: amazon-linux-2023`, which has it.",
            code="image-lacks",
        )
    if mounted(spec.data) and image.has_apt:
        raise SpecError(
            f"data: {image.alias} lacks Mountpoint for S3, and no node can reach AWS's server that has it",
            "Choose `image: amazon-linux-2023`, whose packages are in S3, or stage the data.",
            code="image-lacks",
        )


def warnings_of_private(spec: ClusterSpec, image: ImageChoice, offline: bool) -> Iterator[str]:
    """Yield what has to be brought along, one sentence each."""
    if not spec.is_private:
        return
    if offline:
        yield (
            "no node reaches the internet: environments (--recipe, requirements.txt), public data sets and git need a "
            "mirror inside the VPC, or an image with everything (`phalanx image build`)"
        )
    if not is_local(spec.cloud) and image.contents is None:
        yield f"{image.alias} must have AWS's SSM Agent, an NFS client and all else that jobs need"
