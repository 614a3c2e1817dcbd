"""Change the size of an EMR cluster that phalanx has adopted: its core group, and the agent on new nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from phalanx.aws import domains
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.emr_growth import start_agents
from phalanx.emr import emr_found
from phalanx.errors import ClusterError
from phalanx.node.roster import Node
from phalanx.waits import waiting

# Of a group that EMR has given up to fill.
_GIVEN_UP = ("ARRESTED", "SUSPENDED")
# EMR installs applications on each new node.
_DEADLINE_S = 30 * 60.0


class CoreGroup:
    """The core instance group of an adopted cluster. Raises ClusterError if it has none."""

    def __init__(self, cloud: Any, cluster: Cluster) -> None:
        self.cloud, self.cluster, self._id = cloud, cluster, cluster.spec["adopted"]
        self._read()

    def resize(self, nodes: int, leaving: Sequence[Node], members: Sequence[Node]) -> Iterator[str]:
        """End the nodes that leave, or have EMR start more and start their agents; yield what happens."""
        if leaving:
            self._modify(EC2InstanceIdsToTerminate=[node.instance_id for node in leaving])
            return
        if self._read()["RequestedInstanceCount"] < nodes - 1:
            self._modify(InstanceCount=nodes - 1)
        yield from self._running(nodes - 1)
        found, known = emr_found.find(self.cloud, self._id), {node.instance_id for node in members}
        new = [one for one in found.instances if one.instance_id not in known][: nodes - len(members)]
        if new:
            yield f"starting the agent on {' and '.join(one.instance_id for one in new)}"
            start_agents(self.cloud, domains.of(self.cloud.region), self.cluster, found, new)

    def _running(self, count: int) -> Iterator[str]:
        """Wait until so many instances run; yield their number as it changes."""
        end, shown = time.monotonic() + _DEADLINE_S, -1
        with waiting(f"EMR cluster {self._id} to have {count} core nodes"):
            while (running := (group := self._read())["RunningInstanceCount"]) < count:
                status = group["Status"]
                if status["State"] in _GIVEN_UP or time.monotonic() > end:
                    why = status.get("StateChangeReason", {}).get("Message", "") or f"it is {status['State']}"
                    raise ClusterError(
                        f"EMR has {running} of {count} core nodes of {self._id}: {why}",
                        "The same `phalanx scale` goes on when they run.",
                    )
                if running != shown:
                    yield f"EMR runs {running} of {count} core nodes"
                shown = running
                time.sleep(self.cloud.poll_interval_s)

    def _read(self) -> dict[str, Any]:
        groups = self.cloud.pages("emr", "list_instance_groups", "InstanceGroups", ClusterId=self._id)
        found = next((one for one in groups if one["InstanceGroupType"] == "CORE"), None)
        if found is None:
            raise ClusterError(
                f"EMR cluster {self._id} has no core nodes, whose number could change",
                "`aws emr add-instance-groups` adds a core group.",
            )
        return found

    def _modify(self, **change: Any) -> None:
        changes = [{"InstanceGroupId": self._read()["Id"], **change}]
        self.cloud.call("emr", "modify_instance_groups", ClusterId=self._id, InstanceGroups=changes)
