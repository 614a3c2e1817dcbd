"""The workers of an EMR cluster: its core instance group, as ListInstances shows it.

EMR makes the machines with the cluster, replaces those that die, and ends the cluster with its master node. Its groups
have no maximum, no schedule and no notifications.
"""

from __future__ import annotations

from typing import Any

from phalanx.node.aws_client import Aws
from phalanx.node.services import Fleet, Reading, Refusal

# Of a group that EMR has given up to fill (API reference, InstanceGroupStatus).
_GIVEN_UP = ("ARRESTED", "SUSPENDED")


class Core(Fleet):
    """The core instance group, and its instances in EC2."""

    administrator = "hadoop"
    # Where AWS's scripts for deep learning on EMR have it.
    address_file = "/home/hadoop/worker_ip_file"

    def __init__(self, aws: Aws, cluster: str) -> None:
        super().__init__(aws, cluster)
        self._aws, self._cluster = aws, cluster

    def _set_size(self, machines: int) -> None:
        """Set the group's size. EMR refuses a change while the cluster starts, with the number that it has."""
        group = self._core()
        if group and group["RequestedInstanceCount"] != machines:
            self._modify(group, InstanceCount=machines)

    def terminate(self, instance_id: str, replaced: bool) -> None:
        """Terminate a worker, after which the group is smaller; request the same number again if it is `replaced`.

        The master node is no worker: EMR ends the cluster with it. No error if the instance is gone.
        """
        group = self._core()
        if not group or instance_id not in self._instances(group):
            return
        self._modify(group, EC2InstanceIdsToTerminate=[instance_id])
        if replaced:
            self._modify(group, InstanceCount=group["RequestedInstanceCount"])

    def read(self) -> Reading:
        """Read the group, its instances, and why EMR has given up to launch more."""
        group = self._core()
        if not group:
            return Reading((), ())
        status = group["Status"]
        why = status.get("StateChangeReason", {}).get("Message") or f"EMR reports the group as {status['State']}"
        refusals = (Refusal(why, why),) if status["State"] in _GIVEN_UP else ()
        return Reading(self._instances(group), refusals)

    def lease_end(self) -> float:
        """Return 0: nothing ends the nodes of an EMR cluster at a time."""
        return 0.0

    def settings(self, stack_id: str) -> tuple[int, str]:  # noqa: ARG002 - of every fleet
        """Return that the nodes do not stop when nobody uses them, and that nobody gets mails."""
        return 0, ""

    def _core(self) -> dict[str, Any]:
        """Return the group; {} for a cluster with only a master node."""
        groups = self._ask("ListInstanceGroups")["InstanceGroups"]
        return next((group for group in groups if group["InstanceGroupType"] == "CORE"), {})

    def _instances(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Return the ids of all that exist or are being launched; an instance that is not launched yet has none."""
        found: list[str] = []
        marker: dict[str, str] = {}
        while True:
            page = self._ask("ListInstances", InstanceGroupId=group["Id"], **marker)
            ids = (i.get("Ec2InstanceId", "") for i in page["Instances"] if i["Status"]["State"] != "TERMINATED")
            found += filter(None, ids)
            if not page.get("Marker"):
                return tuple(found)
            marker = {"Marker": page["Marker"]}

    def _modify(self, group: dict[str, Any], **change: Any) -> None:
        self._ask("ModifyInstanceGroups", InstanceGroups=[{"InstanceGroupId": group["Id"], **change}])

    def _ask(self, action: str, **payload: Any) -> dict[str, Any]:
        target = f"ElasticMapReduce.{action}"
        return self._aws.json("elasticmapreduce", target, {"ClusterId": self._cluster, **payload})


class Fixed(Core):
    """The core instance group of a user's own cluster, which is read and never changed."""

    def _set_size(self, machines: int) -> None:
        """Do nothing."""

    def terminate(self, instance_id: str, replaced: bool) -> None:
        """Do nothing."""
