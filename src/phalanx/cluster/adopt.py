"""Take over a cluster that another machine created, or somebody in CloudFormation's console."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.aws import stacks
from phalanx.aws.model import StackState
from phalanx.cluster import keys
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.ready import record_ready
from phalanx.cluster.stack import require_ours
from phalanx.errors import CloudError, ClusterError
from phalanx.node.roster import Roster

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

# The fields of a ClusterSpec that the stack's parameters show: field → parameter.
_TEXTS = {"type": "InstanceType", "shared": "SharedDirectory"}
_NUMBERS = {"min": "MinNodes", "node_timeout_s": "NodeTimeout"}


def adopt(cloud: Aws, name: str, identity: Path | None = None) -> tuple[Cluster, Roster]:
    """Write this machine's record of a ready cluster, with a copy of the private key that its nodes accept.

    `identity` is that key's file; by default it is looked for in ~/.ssh. Raises CloudError or ClusterError.
    """
    state = stacks.describe(cloud, name)
    if state is None:
        raise CloudError(
            f"there is no stack {name} in {cloud.region}", "Choose another --region or --cloud.", code="no-stack"
        )
    require_ours(state)
    if not state.ready:
        raise CloudError(
            f"stack {name} is {state.status}", "Only a cluster that is ready can be adopted.", code="cluster-not-ready"
        )
    _refuse_another(name, state)
    _take_key(name, state.parameters.get("SshPublicKey", ""), identity)
    return record_ready(cloud, state, settings(cloud, state))


def _refuse_another(name: str, state: StackState) -> None:
    """Refuse if this machine has another cluster of that name: its record and its only key would be replaced."""
    try:
        known = Cluster.load(name)
    except ClusterError:
        return
    if known.stack_id and known.stack_id != state.stack_id:
        raise ClusterError(
            f"this machine already knows another cluster {name}: {known.stack_id}",
            f"`phalanx down -c {name}` deletes that one; or adopt this one with another XDG_STATE_HOME.",
            code="cluster-exists",
        )


def _take_key(name: str, accepted: str, identity: Path | None) -> None:
    if not accepted:
        raise ClusterError(
            f"cluster {name} accepts no key as its job user: its parameter SshPublicKey is empty",
            "Create the stack again with your public key there.",
            code="no-public-key",
        )
    if keys.public(name).split()[:2] == accepted.split()[:2]:
        return
    for candidate in [identity] if identity else _private_keys():
        if keys.take(name, candidate, accepted):
            return
    looked = str(identity) if identity else "~/.ssh"
    raise ClusterError(
        f"cluster {name} accepts the key {accepted[:40]}…, and {looked} has no private key to it without a passphrase",
        "Choose the file of the private key with -i.",
        code="no-private-key",
    )


def _private_keys() -> list[Path]:
    return sorted(path for path in (Path.home() / ".ssh").glob("id_*") if path.suffix != ".pub")


def settings(cloud: Aws, state: StackState) -> dict[str, Any]:
    """Return the settings that are known from the parameters; the others are not compared by `up`.

    No file describes an EMR cluster that phalanx did not make. Its record contains this in place of a file's keys.
    """
    given = state.parameters
    known: dict[str, Any] = {"name": state.name, "cloud": cloud.name, "region": cloud.region, "nodes": state.nodes}
    known |= {field: given[parameter] for field, parameter in _TEXTS.items()}
    known |= {field: int(given[parameter]) for field, parameter in _NUMBERS.items()}
    if own := given.get("FileSystemId"):
        known["file_system"] = own
    if state.emr_cluster:
        known["adopted"] = state.emr_cluster
        known["head"] = {"type": given["HeadType"]} if given["HeadType"] != given["InstanceType"] else None
    return known
