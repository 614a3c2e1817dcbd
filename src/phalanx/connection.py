"""Connects a cluster to the cloud of its name. botocore is imported at the first request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from phalanx.aws import tables
from phalanx.aws.auto_scaling import AutoScaling
from phalanx.aws.aws_account import Account
from phalanx.cluster import diagnosis
from phalanx.cluster.stack import read_roster
from phalanx.emr.instance_groups import InstanceGroups
from phalanx.errors import ClusterError, SpecError
from phalanx.local import endpoint
from phalanx.spec.cloud_names import CLOUDS, is_local
from phalanx.spec.makers import EMR, maker_of

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws
    from phalanx.cluster.cluster_record import Cluster
    from phalanx.emr.resizing import CoreGroup
    from phalanx.node.roster import Roster


def connect(name: str, region: str) -> Aws:
    """Return the cloud of this name. Connects to nothing yet and starts nothing."""
    _require_known(name)
    aws = _here(name, region) if is_local(name) else _account(name, region)
    aws.machines = InstanceGroups(aws) if maker_of(name) is EMR else AutoScaling(aws)
    return aws


def _account(name: str, region: str) -> Aws:
    from phalanx.aws.aws import Aws  # here: it loads botocore

    aws = Aws(region, name)
    aws.site = Account(aws)
    return aws


def _here(name: str, region: str) -> Aws:
    from phalanx.local.local_aws import LocalAws  # here: it loads botocore
    from phalanx.local.this_machine import ThisMachine  # here: it loads YAML, which a job's commands do not need

    aws = LocalAws(region, name)
    aws.site = ThisMachine(aws)
    return aws


def begin(name: str) -> None:
    """Start what the cloud needs on this machine (the local cloud's process, or nothing) without waiting for it."""
    _require_known(name)
    if is_local(name):
        endpoint.begin()


def attached(cluster: Cluster) -> Cluster:
    """Return the cluster with its cloud's API, which provides the roster and helps when ssh fails."""
    return replace(cluster, control=ControlPlane())


class ControlPlane:
    """See `phalanx.cluster.cluster_record.ControlPlane`."""

    def aws(self, cluster: Cluster) -> Aws:
        return connect(cluster.cloud, cluster.region)

    def roster(self, cluster: Cluster) -> Roster:
        """Read it from the table that only the head's role may write. `exec` and `ssh` wait for this."""
        roster = read_roster(cluster.aws(), cluster.table)
        if roster is None:
            raise ClusterError(
                f"cluster {cluster.name} has no roster", "`phalanx status` shows more.", code="no-roster"
            )
        return roster

    def settle_by(self, cluster: Cluster, command: str) -> None:
        """Write the command into the table with the user's permissions, which no job or worker has."""
        tables.put(cluster.aws(), cluster.table, "settle", command={"S": command})

    def repair(self, cluster: Cluster, error: ClusterError) -> bool:
        return diagnosis.repair(cluster, error)

    def core_group(self, cluster: Cluster) -> CoreGroup:
        from phalanx.emr.resizing import CoreGroup  # here: it loads botocore and troposphere

        return CoreGroup(cluster.aws(), cluster)


def _require_known(name: str) -> None:
    if name not in CLOUDS:
        raise SpecError(f"there is no cloud '{name}'", f"Choose one of: {', '.join(CLOUDS)}.", code="no-cloud")
