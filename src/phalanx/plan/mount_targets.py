"""The mount targets that a file system of the user's has, and where a cluster can use them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.errors import SpecError
from phalanx.spec.spec import ClusterSpec


@dataclass(frozen=True)
class MountTarget:
    """A mount target as EFS describes it, with its security groups."""

    zone: str
    vpc: str
    groups: tuple[str, ...]


def in_zone(targets: Sequence[MountTarget], zone: str) -> MountTarget | None:
    """Return the mount target in a zone: a file system has at most one there (docs/aws-behaviour.md 4.6)."""
    return next((target for target in targets if target.zone == zone), None)


def refuse_unreachable(spec: ClusterSpec, targets: Sequence[MountTarget], vpc: str, zone: str) -> None:
    """Raise SpecError if the mount targets are not in the cluster's VPC, "" for a new one: EFS serves one at a time."""
    if not targets:
        return
    there = targets[0].vpc
    if there != vpc:
        raise SpecError(
            f"file_system: {spec.file_system} has mount targets in {there}, and the nodes are in {vpc or 'a new VPC'}",
            f"EFS serves one VPC at a time. Name subnets of {there} (`network`), delete its mount targets, or run "
            "`phalanx down` for the other cluster.",
            code="file-system-elsewhere",
        )
    if spec.keep == "no":
        raise SpecError(
            f"keep: {spec.file_system} has mount targets that are not the cluster's, so `down` can't delete it",
            "Remove the line.",
            code="used-by-others",
        )
    if (target := in_zone(targets, zone)) and not target.groups:
        raise SpecError(
            f"file_system: the mount target of {spec.file_system} in {zone} has no security group",
            "Give it one with `aws efs modify-mount-target-security-groups`.",
            code="no-security-group",
        )
