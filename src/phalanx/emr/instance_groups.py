"""The machines of clusters that EMR makes: a master node, and a core instance group (docs/aws-behaviour.md 7)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from phalanx.aws import stacks, tags
from phalanx.aws.file_systems import stored_gib
from phalanx.aws.model import Heads, Resource, Running, ScalingActivity
from phalanx.emr import checks
from phalanx.errors import ClusterError
from phalanx.plan.money import Use

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws
    from phalanx.spec.spec import ClusterSpec

RESOURCE = "EmrCluster"
"""The cluster's logical id in its stack."""
SOURCE = "EMR"
ADMIN_USER = "hadoop"
"""On every node of EMR, whatever the image has; it owns Hadoop and Spark."""
STUCK_AFTER_S = 20 * 60
"""A cluster that starts for longer has a problem that EMR does not report: half of this is usual."""
_ACTIVE = ("STARTING", "BOOTSTRAPPING", "RUNNING", "WAITING", "TERMINATING")
_ENDED = ("TERMINATING", "TERMINATED", "TERMINATED_WITH_ERRORS")
_GROUP_OF = {"head": "MASTER", "workers": "CORE"}
# Reasons of instances that ended with their cluster, or because somebody wanted fewer.
_MEANT = ("CLUSTER_TERMINATED", "USER_REQUEST", "INSTANCE_GROUP_RESIZE")


class InstanceGroups:
    """See `phalanx.aws.model.Machines`."""

    admin_user = ADMIN_USER

    def __init__(self, api: Aws) -> None:
        self._api = api

    def require(self, spec: ClusterSpec) -> tuple[str, str]:
        return checks.require(self._api, spec)

    def running(self, cluster: str) -> Running | None:
        """Return how many nodes EMR is to run; with the reason, if it has ended the cluster."""
        known = self._cluster(cluster)
        if not known:
            return None
        if known["Status"]["State"] in _ENDED:
            ended = f"EMR has ended the cluster ({_reason(known['Status']) or 'no reason given'})"
            return Running(0, stopped=True, end_s=None, ended=ended)
        groups = self._api.pages("emr", "list_instance_groups", "InstanceGroups", ClusterId=known["Id"])
        return Running(sum(group["RequestedInstanceCount"] for group in groups), stopped=False, end_s=None)

    def use(self, cluster: str, file_system: str, now_s: float) -> Use:
        known = self._cluster(cluster)
        hours, counts = {"MASTER": 0.0, "CORE": 0.0}, {"MASTER": 0, "CORE": 0}
        for kind in hours if known else ():
            for instance in self._instances(known["Id"], kind):
                hours[kind] += _hours(instance["Status"], now_s)
                counts[kind] += instance["Status"]["State"] != "TERMINATED"
        stored = stored_gib(self._api, file_system) if file_system else 0.0
        return Use(hours["MASTER"], hours["CORE"], counts["MASTER"], counts["CORE"], stored)

    def end_at(self, cluster: str, at_s: float | None) -> None:
        """Raise ClusterError for a time: EMR can end a cluster, and not stop it."""
        if at_s is not None:
            raise ClusterError(
                f"cluster {cluster} can have no lease: EMR ends a cluster together with its nodes",
                code="emr-ends-with-nodes",
            )

    def keep_until(self, cluster: str, at_s: float) -> None:  # noqa: ARG002 - of the protocol
        raise ClusterError(
            f"cluster {cluster} is never stopped: EMR ends a cluster together with its nodes",
            code="emr-ends-with-nodes",
        )

    def start_nodes(self, cluster: str, nodes: int) -> None:  # noqa: ARG002 - of the protocol
        raise ClusterError(
            f"EMR can't start nodes of cluster {cluster} again",
            "`phalanx down`, then `phalanx up`.",
            code="emr-ends-with-nodes",
        )

    def allow_nodes(self, cluster: str, nodes: int) -> None:
        """Do nothing: EMR's groups have no maximum."""

    def outdated(self, cluster: str) -> list[str]:  # noqa: ARG002 - of the protocol
        """Return nothing: no setting of EMR's machines can change without another cluster."""
        return []

    def activities(self, group: str) -> list[ScalingActivity]:
        """Return what went wrong with the machines of a group, `NAME-head` or `NAME-workers`, newest first."""
        cluster, _, role = group.rpartition("-")
        known = self._cluster(cluster)
        if not known:
            return []
        found = [*self._of_instances(known["Id"], _GROUP_OF[role])]
        if role == "workers":
            found += self._of_group(known["Id"])
        else:
            found += _of_cluster(known, time.time())
        return sorted(found, key=lambda one: one.began_s, reverse=True)

    def heads(self, group: str) -> Heads:
        """Return the master nodes of the cluster with this id; a cluster has one in its life."""
        instances = list(self._instances(group, "MASTER"))
        launched = tuple(i["Ec2InstanceId"] for i in instances if i.get("Ec2InstanceId"))
        running = any(i["Status"]["State"] in ("BOOTSTRAPPING", "RUNNING") for i in instances)
        why = next((_reason(i["Status"]) for i in instances if i["Status"]["State"] == "TERMINATED"), "")
        return Heads(launched, why, running)

    def leftovers(self, cluster: str, resources: Sequence[Resource]) -> Iterator[str]:
        """Yield clusters that still have machines; EMR describes a terminated one for two months."""
        recorded = [one.physical_id for one in resources if one.resource_type == "AWS::EMR::Cluster"]
        named = [known["Id"] for known in self._active() if known["Name"] == cluster]
        for cluster_id in dict.fromkeys([*recorded, *named]):
            known = self._described(cluster_id)
            is_ours = cluster_id in recorded or tags.is_of(known, cluster)
            state = known["Status"]["State"]
            if is_ours and not state.startswith("TERMINATED"):
                yield f"EMR cluster {cluster_id} ({state})"

    def clusters(self) -> Iterator[str]:
        for one in self._active():
            if cluster := tags.cluster_of(self._described(one["Id"])):
                yield cluster

    def _active(self) -> Iterator[dict[str, Any]]:
        """Yield the region's clusters that have, or will have, machines."""
        return self._api.pages("emr", "list_clusters", "Clusters", ClusterStates=list(_ACTIVE))

    def _described(self, cluster_id: str) -> dict[str, Any]:
        return self._api.call("emr", "describe_cluster", ClusterId=cluster_id)["Cluster"]

    def _cluster(self, cluster: str) -> dict[str, Any]:
        """Return EMR's description of the stack's cluster; {} before there is one."""
        state = stacks.describe(self._api, cluster)
        if state is None:
            return {}
        made = (one.physical_id for one in stacks.resources(self._api, cluster) if one.logical_id == RESOURCE)
        cluster_id = state.emr_cluster or next(made, "")
        return self._described(cluster_id) if cluster_id else {}

    def _instances(self, cluster_id: str, kind: str) -> Iterator[dict[str, Any]]:
        return self._api.pages("emr", "list_instances", "Instances", ClusterId=cluster_id, InstanceGroupTypes=[kind])

    def _of_instances(self, cluster_id: str, kind: str) -> Iterator[ScalingActivity]:
        for instance in self._instances(cluster_id, kind):
            status = instance["Status"]
            code = status.get("StateChangeReason", {}).get("Code", "")
            if status["State"] == "TERMINATED" and code and code not in _MEANT:
                yield _failure(status, f"{instance.get('Ec2InstanceId', 'an instance')}: {_reason(status)}")

    def _of_group(self, cluster_id: str) -> Iterator[ScalingActivity]:
        for group in self._api.pages("emr", "list_instance_groups", "InstanceGroups", ClusterId=cluster_id):
            if group["Status"]["State"] in ("ARRESTED", "SUSPENDED"):
                yield _failure(group["Status"], f"EMR has given up on the workers' group: {_reason(group['Status'])}")


def _of_cluster(known: dict[str, Any], now_s: float) -> Iterator[ScalingActivity]:
    """Yield that EMR has ended the cluster, or that it starts for too long."""
    status = known["Status"]
    age_s = now_s - _moment(status, "CreationDateTime")
    if status["State"] == "TERMINATED_WITH_ERRORS":
        yield _failure(status, f"EMR ended the cluster: {_reason(status)}")
    elif status["State"] in ("STARTING", "BOOTSTRAPPING") and age_s > STUCK_AFTER_S:
        text = f"EMR reports the cluster as {status['State']} for {age_s / 60:.0f} min: {_reason(status)}"
        yield _failure(status, text.rstrip(": "))


def _failure(status: dict[str, Any], text: str) -> ScalingActivity:
    began_s = _moment(status, "CreationDateTime")
    return ScalingActivity(began_s, _moment(status, "EndDateTime") or None, text, "", "Failed", text, SOURCE)


def _reason(status: dict[str, Any]) -> str:
    return status.get("StateChangeReason", {}).get("Message", "")


def _moment(status: dict[str, Any], name: str) -> float:
    """Return a time of the status's timeline in seconds since the epoch; 0 if it has none."""
    found = status.get("Timeline", {}).get(name)
    return found.timestamp() if isinstance(found, datetime) else 0.0


def _hours(status: dict[str, Any], now_s: float) -> float:
    return max(0.0, (_moment(status, "EndDateTime") or now_s) - _moment(status, "CreationDateTime")) / 3600
