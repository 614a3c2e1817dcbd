"""Start the agent on nodes that EMR has added to an adopted cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.aws import stacks
from phalanx.aws.model import StackState
from phalanx.cluster import emr_release
from phalanx.cluster.adopt_emr import job_role_of, unsuited
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.emr_nodes import Nodes
from phalanx.errors import ClusterError
from phalanx.plan.emr_cluster import EmrCluster, Instance
from phalanx.template import emr_adopted, userdata
from phalanx.template.emr_adopted import Terms

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws


def start_agents(cloud: Aws, domain: str, cluster: Cluster, found: EmrCluster, new: Sequence[Instance]) -> None:
    """Start the agent on these nodes, as on the others. Raises ClusterError with what keeps a node from it."""
    state = stacks.describe(cloud, cluster.stack_id)
    if state is None:
        raise ClusterError(f"the stack of cluster {cluster.name} is gone", "`phalanx status` shows more.")
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
        raise ClusterError("\n".join(wrong), "They are nodes of the EMR cluster, and no members.")
    for one in new:
        if any(mark.startswith("stack/") for mark in has[one]):  # of an attempt before
            emr_release.release_node(nodes.remote(one), one.instance_id)
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
    scripts = {one: emr_adopted.boot(terms, one, state.stack_id, domain, made, role) for one in new}
    if failed := nodes.boot(scripts):
        lines = [f"the agent could not be started on {one.instance_id}: {text}" for one, text in failed.items()]
        raise ClusterError("\n".join(lines), "The same `phalanx scale` tries it again.")


def _require_same_agent(cluster: Cluster, state: StackState) -> None:
    if state.outputs["AgentVersion"] != userdata.agent_version():
        raise ClusterError(
            f"another version of phalanx has adopted cluster {cluster.name}: its nodes run another agent",
            "Use that version; or `phalanx down`, and adopt it again.",
        )
