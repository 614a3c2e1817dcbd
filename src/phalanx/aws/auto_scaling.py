"""The machines of clusters that Auto Scaling makes: a group for the head, and one for the workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from phalanx.aws import activities, heads, leases, metering
from phalanx.aws.model import Heads, Resource, Running, ScalingActivity

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws
    from phalanx.plan.money import Use
    from phalanx.spec.spec import ClusterSpec


class AutoScaling:
    """See `phalanx.aws.model.Machines`."""

    admin_user = ""

    def __init__(self, api: Aws) -> None:
        self._api = api

    def require(self, spec: ClusterSpec) -> tuple[str, str]:  # noqa: ARG002 - of the protocol
        return "", ""

    def running(self, cluster: str) -> Running | None:
        return leases.running(self._api, cluster)

    def use(self, cluster: str, file_system: str, now_s: float) -> Use:
        return metering.use(self._api, cluster, file_system, now_s)

    def outdated(self, cluster: str) -> list[str]:
        return leases.outdated(self._api, cluster)

    def end_at(self, cluster: str, at_s: float | None) -> None:
        leases.end_at(self._api, cluster, at_s)

    def keep_until(self, cluster: str, at_s: float) -> None:
        leases.keep_until(self._api, cluster, at_s)

    def start_nodes(self, cluster: str, nodes: int) -> None:
        leases.start(self._api, cluster, nodes)

    def allow_nodes(self, cluster: str, nodes: int) -> None:
        leases.allow(self._api, cluster, nodes)

    def activities(self, group: str) -> list[ScalingActivity]:
        return activities.of(self._api, group, deleted=True)

    def leftovers(self, cluster: str, resources: Sequence[Resource]) -> Iterator[str]:  # noqa: ARG002 - of the protocol
        """Yield nothing: groups are resources of the stack."""
        yield from ()

    def clusters(self) -> Iterator[str]:
        """Yield nothing: the tags of groups are found with those of all resources."""
        yield from ()

    def heads(self, group: str) -> Heads:
        return heads.of(self._api, group)
