"""A cluster without public addresses or a way to the internet: its endpoints, and what can't be had there. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.errors import SpecError
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
    able = f"Choose an image that has all: {', '.join(image.complete)}, or one of yours (`phalanx image build`)."
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
            "Choose `image: dlami-base`, which has it, or an image of yours.",
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


def warnings(spec: ClusterSpec, image: ImageChoice, offline: bool) -> Iterator[str]:
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
