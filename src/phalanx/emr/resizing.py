"""Change the size of an EMR cluster that phalanx has adopted: its core group, and the agent on new nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.aws import sessions, stacks
from phalanx.aws.model import StackState
from phalanx.cluster import give_back
from phalanx.cluster.cluster_record import Cluster
from phalanx.counts import first_of
from phalanx.emr import look_up
from phalanx.emr.adoption import Nodes, job_role_of, unsuited
from phalanx.errors import ClusterError
from phalanx.node.roster import Node
from phalanx.node.workers_group import workers_of
from phalanx.template import userdata
from phalanx.template.emr import adopted
from phalanx.template.emr.adopted import EmrCluster, Instance, Terms
from phalanx.waits import waiting

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

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
        workers = workers_of(nodes)
        if self._read()["RequestedInstanceCount"] < workers:
            self._modify(InstanceCount=workers)
        yield from self._running(workers)
        found, known = look_up.find(self.cloud, self._id), {node.instance_id for node in members}
        new = [one for one in found.instances if one.instance_id not in known][: nodes - len(members)]
        if new:
            yield f"starting the agent on {' and '.join(one.instance_id for one in new)}"
            start_agents(self.cloud, sessions.domain_of(self.cloud.region), self.cluster, found, new)

    def _running(self, count: int) -> Iterator[str]:
        """Wait until this many instances run; yield their number as it changes."""
        end, shown = time.monotonic() + _DEADLINE_S, -1
        with waiting(f"EMR cluster {self._id} to have {count} core nodes"):
            while (running := (group := self._read())["RunningInstanceCount"]) < count:
                status = group["Status"]
                if status["State"] in _GIVEN_UP or time.monotonic() > end:
                    why = status.get("StateChangeReason", {}).get("Message", "") or f"it is {status['State']}"
                    raise ClusterError(
                        f"EMR has {running} of {count} core nodes of {self._id}: {why}",
                        "Run the same `phalanx scale` again when they run.",
                        code="not-scaled",
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
                code="no-core-group",
            )
        return found

    def _modify(self, **change: Any) -> None:
        changes = [{"InstanceGroupId": self._read()["Id"], **change}]
        self.cloud.call("emr", "modify_instance_groups", ClusterId=self._id, InstanceGroups=changes)


def start_agents(cloud: Aws, domain: str, cluster: Cluster, found: EmrCluster, new: Sequence[Instance]) -> None:
    """Start the agent on these nodes, as on the others. Raises ClusterError with what keeps a node from it."""
    state = stacks.describe(cloud, cluster.stack_id)
    if state is None:
        raise ClusterError(
            f"the stack of cluster {cluster.name} is gone", "`phalanx status` shows more.", code="cluster-gone"
        )
    _require_same_agent(cluster, state)
    identity = cluster.spec.get("identity")
    nodes = Nodes(found, cluster.name, cloud.site.ssh_route(), Path(identity) if identity else None)
    try:
        _boot(cloud, domain, state, nodes, new)
    finally:
        nodes.close()


def _boot(cloud: Aws, domain: str, state: StackState, nodes: Nodes, new: Sequence[Instance]) -> None:
    given, found = state.parameters, nodes.cluster
    has = nodes.look(given["SharedDirectory"])
    served = "shared" not in has[found.master]
    wrong = [text for one in new for text in unsuited(one, has[one])]
    wrong += [
        f"{given['SharedDirectory']} is not mounted on {one.instance_id}"
        for one in new
        if not served and "shared" not in has[one]
    ]
    if wrong:
        raise ClusterError(
            first_of(wrong, "\n"), "They are nodes of the EMR cluster, and no members.", code="unsuited-emr-cluster"
        )
    for one in new:
        if any(mark.startswith("stack/") for mark in has[one]):  # of an attempt before
            give_back.release_node(nodes.remote(one), one.instance_id)
    made = {one.logical_id: one.physical_id for one in stacks.resources(cloud, state.stack_id)}
    terms = Terms(
        found,
        state.name,
        int(given["MinNodes"]),
        int(given["NodeTimeout"]),
        given["SharedDirectory"],
        served,
        given["SshPublicKey"],
    )
    role = job_role_of(found, made)
    scripts = {one: adopted.boot(terms, one, state.stack_id, domain, made, role) for one in new}
    if failed := nodes.boot(scripts):
        lines = [f"the agent could not be started on {one.instance_id}: {text}" for one, text in failed.items()]
        raise ClusterError(
            first_of(lines, "\n"), "Run the same `phalanx scale` to try again.", code="agent-not-started"
        )


def _require_same_agent(cluster: Cluster, state: StackState) -> None:
    if state.outputs["AgentVersion"] != userdata.agent_version():
        raise ClusterError(
            f"another version of phalanx has adopted cluster {cluster.name}: its nodes run another agent",
            "Use that version; or `phalanx down`, and adopt it again.",
            code="other-version",
        )
