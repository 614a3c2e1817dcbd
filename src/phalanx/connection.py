"""Connects a cluster to the cloud of its name. What is beyond, botocore among it, is imported at the first request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from phalanx.errors import SpecError
from phalanx.spec.cloud_names import CLOUDS, is_emr, is_local

if TYPE_CHECKING:
    from phalanx.aws.aws_api import ApiCloud
    from phalanx.aws.protocol import Cloud
    from phalanx.cluster.cluster_record import Cluster
    from phalanx.emr.emr_resizing import CoreGroup
    from phalanx.errors import ClusterError
    from phalanx.node.roster import Roster


def connect(name: str, region: str) -> Cloud:
    """Return the cloud of this name. Connects to nothing yet and starts nothing."""
    cloud = _connect(name, region)
    if is_emr(name):
        from phalanx.emr.instance_groups import InstanceGroups

        cloud.machines = InstanceGroups(cloud)
    return cloud


def _connect(name: str, region: str) -> ApiCloud:
    _require_known(name)
    if is_local(name):
        from phalanx.local.local import LocalCloud

        return LocalCloud(region, name)
    from phalanx.aws.aws import AwsCloud

    return AwsCloud(region, name)


def begin(name: str) -> None:
    """Start what the cloud needs on this machine (the local cloud's process, or nothing) without waiting for it."""
    _require_known(name)
    if is_local(name):
        from phalanx.local import endpoint

        endpoint.begin()


def attached(cluster: Cluster) -> Cluster:
    """Return the cluster with its cloud's API, which provides the roster and helps when ssh fails."""
    return replace(cluster, control=ControlPlane())


class ControlPlane:
    """See `phalanx.cluster.cluster_record.ControlPlane`."""

    def aws(self, cluster: Cluster) -> Cloud:
        return connect(cluster.cloud, cluster.region)

    def roster(self, cluster: Cluster) -> Roster:
        from phalanx.cluster import rosters

        return rosters.read(cluster)

    def settle_by(self, cluster: Cluster, command: str) -> None:
        from phalanx.cluster import rosters

        rosters.settle_by(cluster, command)

    def repair(self, cluster: Cluster, error: ClusterError) -> bool:
        from phalanx.cluster import diagnosis

        return diagnosis.repair(cluster, error)

    def core_group(self, cluster: Cluster) -> CoreGroup:
        from phalanx.emr.emr_resizing import CoreGroup

        return CoreGroup(cluster.aws(), cluster)


def _require_known(name: str) -> None:
    if name not in CLOUDS:
        raise SpecError(f"there is no cloud '{name}'", f"Choose one of: {', '.join(CLOUDS)}.")
