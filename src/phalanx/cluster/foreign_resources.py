"""Resources of others in a cluster's VPC: GuardDuty's are deleted with the cluster, and the rest is named."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phalanx.aws.inventory import foreign
from phalanx.aws.model import Resource
from phalanx.errors import CloudError

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_VPC = "AWS::EC2::VPC"
# An endpoint's network interface takes minutes to be deleted.
_DEADLINE_S = 10 * 60.0


@dataclass(frozen=True)
class ForeignDeleted:
    """What GuardDuty had made in the cluster's VPC is being deleted, since it keeps the VPC from being deleted."""

    lines: tuple[str, ...]

    def __str__(self) -> str:
        return f"GuardDuty's {', '.join(self.lines)}: deleted, so that the VPC can be deleted"


def delete_guard_duty(cloud: Aws, resources: Sequence[Resource], deadline_s: float) -> Iterator[ForeignDeleted]:
    """Delete GuardDuty's endpoint and security group, and wait for their end. Raises CloudError at the deadline."""
    end_s = min(deadline_s, time.monotonic() + _DEADLINE_S)
    for vpc in _vpcs(resources):
        shown: list[str] = []
        while left := foreign.delete_guard_duty(cloud, vpc):
            if not shown:
                yield ForeignDeleted(tuple(left))
                shown = left
            if time.monotonic() > end_s:
                raise CloudError(
                    f"{vpc} can't be deleted: {'; '.join(left)}",
                    "Delete it, then run `phalanx down` again.",
                    code="not-deleted",
                )
            time.sleep(cloud.poll_interval_s)


def named(cloud: Aws, cluster: str, resources: Sequence[Resource]) -> list[str]:
    """Return a line for each resource of others that is left in the cluster's VPC.

    The stack's own are left out by their ids: a stack from CloudFormation's console has no tag to know them by.
    """
    own = {resource.physical_id for resource in resources}
    lines = (line for vpc in _vpcs(resources) for line in foreign.find(cloud, cluster, vpc))
    return [line for line in lines if not own & set(line.split())]


def _vpcs(resources: Sequence[Resource]) -> list[str]:
    return [resource.physical_id for resource in resources if resource.resource_type == _VPC]
